// The four steps from interrupts and copies to neither, and what each brings.
import { printTable } from '../table.js'
import { STEP_CASES, STEPS } from './cases.js'
import type { Figures } from './measure.js'

export function printSteps(of: (name: string, size: number) => Figures): void {
  const schemes = [...new Set(STEP_CASES.map(({ name }) => name.split(' ')[0] as string))]
  for (const scheme of schemes)
    for (const size of STEP_CASES[0]?.sizes ?? []) {
      console.log(`\nsteps over ${scheme}, ${size} B; a factor above 1 is faster than the step before`)
      const figures = STEPS.map(({ title }) => ({ title, ...of(`${scheme} ${title}`, size) }))
      printTable(
        ['step', 'p50 µs', 'factor', 'of step 0', 'messages/s', 'factor', 'of step 0'],
        figures.map(({ title, p50, messagesPerSecond }, i) => {
          const [first, before = first] = [figures[0], figures[i - 1]]
          return [
            title,
            p50,
            (before?.p50 ?? p50) / p50,
            (first?.p50 ?? p50) / p50,
            messagesPerSecond,
            messagesPerSecond / (before?.messagesPerSecond ?? messagesPerSecond),
            messagesPerSecond / (first?.messagesPerSecond ?? messagesPerSecond),
          ]
        }),
      )
    }
}
