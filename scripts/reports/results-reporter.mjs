// vitest's JSON report, with the project that each test ran in for scripts/reports/count-tests.mjs.
import { JsonReporter } from 'vitest/node'

export default class ResultsReporter extends JsonReporter {
  async onTestRunEnd(modules) {
    for (const module of modules)
      for (const test of module.children.allTests()) test.task.meta.project = module.project.name
    await super.onTestRunEnd(modules)
  }
}
