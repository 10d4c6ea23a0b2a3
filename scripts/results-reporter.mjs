// vitest's JSON report with what scripts/count-tests.mjs asks for besides: the project that each test ran
// in, and why a test that skipped itself did so.
import { JsonReporter } from 'vitest/node'

export default class ResultsReporter extends JsonReporter {
  async onTestRunEnd(modules) {
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const { meta } = test.task
        meta.project = module.project.name
        const { state, note } = test.result()
        if (state === 'skipped' && note !== undefined) meta.skipped = note
      }
    }
    await super.onTestRunEnd(modules)
  }
}
