// Metrics that are read when they are scraped. A few milliseconds.
import { Registry } from 'prom-client'
import { expect, it } from 'vitest'
import { scrapedMetrics } from '../../src/service/scraped-metrics.js'

it('prints what is true at the scrape', async () => {
  const registry = new Registry()
  const { gauge, counter, histogram } = scrapedMetrics(registry, 'it_')
  let level = 1
  const took: number[] = []
  gauge('level', 'Its level', ['of'], () => [[{ of: 'water' }, level]])
  counter('taken_total', 'What was taken', [], () => [[{}, took.length]])
  histogram('seconds', 'How long it took', 'kind', [0.1, 1], () => ({
    quick: {
      sum: took.reduce((sum, each) => sum + each, 0),
      count: took.length,
      upTo: (edge) => took.filter((each) => each <= edge).length,
    },
  }))
  expect(await registry.metrics()).toContain('it_seconds_bucket{le="+Inf",kind="quick"} 0\n')

  level = 7
  took.push(0.1, 0.5, 2)
  const lines = (await registry.metrics())
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('# HELP'))
  expect(lines).toEqual([
    '# TYPE it_level gauge',
    'it_level{of="water"} 7',
    '# TYPE it_taken_total counter',
    'it_taken_total 3',
    '# TYPE it_seconds histogram',
    'it_seconds_bucket{le="0.1",kind="quick"} 1',
    'it_seconds_bucket{le="1",kind="quick"} 2',
    'it_seconds_bucket{le="+Inf",kind="quick"} 3',
    'it_seconds_sum{kind="quick"} 2.6',
    'it_seconds_count{kind="quick"} 3',
  ])
})
