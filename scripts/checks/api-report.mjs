// node scripts/checks/api-report.mjs [--update]: what the packages export, compared with docs/api-report/*.api.md, which are
// reviewed with the change that alters them; --update writes them. Of the compiled declarations: build first.
import { mkdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Extractor, ExtractorConfig } from '@microsoft/api-extractor'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const reports = join(top, 'docs', 'api-report')
const temporary = join(top, 'build', 'api-report')
const update = process.argv.includes('--update')

/** Entries for our own use only, or without a JavaScript interface. */
const NOT_PUBLIC = new Set(['./internal', './addon', './load-addon', './package.json'])

/** @returns whether the report is as it was, or has been written */
function report(folder, name, types) {
  const config = ExtractorConfig.prepare({
    configObject: {
      projectFolder: folder,
      newlineKind: 'lf',
      mainEntryPointFilePath: join(folder, types),
      apiReport: {
        enabled: true,
        reportFolder: reports,
        reportTempFolder: temporary,
        reportFileName: name,
        includeForgottenExports: true,
      },
      docModel: { enabled: false },
      dtsRollup: { enabled: false },
      tsdocMetadata: { enabled: false },
      compiler: { tsconfigFilePath: join(folder, 'tsconfig.json') },
    },
    configObjectFullPath: undefined,
    packageJsonFullPath: join(folder, 'package.json'),
  })
  const complaints = []
  const { apiReportChanged } = Extractor.invoke(config, {
    localBuild: update,
    messageCallback(message) {
      message.handled = true
      // Reachable types that are not exported are in the report, too.
      if (message.category === 'Compiler') complaints.push(message.text)
    },
  })
  for (const text of complaints) console.error(`api-report: ${name}: ${text}`)
  if (apiReportChanged && !update)
    console.error(`api-report: ${relative(top, join(reports, name))}.api.md differs from what is exported`)
  return complaints.length === 0 && (update || !apiReportChanged)
}

mkdirSync(reports, { recursive: true })
const require = createRequire(join(top, 'package.json'))
let held = true
for (const workspace of require('./package.json').workspaces) {
  const folder = join(top, workspace)
  const manifest = require(`./${workspace}/package.json`)
  for (const [entry, { types }] of Object.entries(manifest.exports ?? {}))
    if (!NOT_PUBLIC.has(entry)) {
      const name = join(manifest.name.replace('@rdmakit/', ''), entry).replaceAll('/', '-')
      held = report(folder, name, types) && held
    }
}
if (!held) {
  console.error(
    'api-report: is the difference meant? node scripts/checks/api-report.mjs --update, and say so in CHANGELOG.md',
  )
  process.exitCode = 1
}
