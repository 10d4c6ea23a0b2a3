// Each link of a Markdown file into the repository leads to a file, a folder or a heading that is there. Half a second.
import { expect, it } from 'vitest'
import { markdownFiles } from './blocks.js'
import { brokenLink, targetsOf } from './links.js'

const files = markdownFiles()

it('finds the links, and tells a path and a heading that are not there', () => {
  expect(targetsOf('README.md').length).toBeGreaterThan(5)
  expect(brokenLink('docs/testing.md', '../test/lab/README.md')).toBeUndefined()
  expect(brokenLink('docs/testing.md', 'testing.md#running-one')).toBeUndefined()
  expect(brokenLink('docs/testing.md', '#rules')).toBeUndefined()
  expect(brokenLink('docs/testing.md', 'missing.md')).toBe('missing.md: there is no docs/missing.md')
  expect(brokenLink('docs/testing.md', '#missing')).toBe('#missing: docs/testing.md has no heading #missing')
  expect(brokenLink('docs/testing.md', '../../elsewhere')).toMatch(/there is no/)
})

for (const file of files)
  it(`${file}: every link leads to something`, () => {
    expect(targetsOf(file).flatMap((target) => brokenLink(file, target) ?? [])).toEqual([])
  })
