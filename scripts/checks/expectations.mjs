// Each test says what it expects: node scripts/checks/expectations.mjs. A test that only awaits something fails by its time-out,
// which tells nothing, and passes when it awaits too little. So the function of each `it`, or what it calls of the tests'
// own, has an expect(). Status: 0 all have one.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
/** The names of test functions: it, it.each(…), it.runIf(…), itRequires(…). */
const TEST = /^it(\b|[A-Z])/

const isFunction = (node) => ts.isArrowFunction(node) || ts.isFunctionExpression(node)

const files = new Map()

/** A file, and the functions that have a name in it: its own, and those of other files of tests. */
function load(path) {
  const known = files.get(path)
  if (known !== undefined) return known
  const file = ts.createSourceFile(path, readFileSync(path, 'utf8'), ts.ScriptTarget.Latest, true)
  const functions = new Map()
  const loaded = { file, functions }
  files.set(path, loaded)
  for (const statement of file.statements) addImported(path, statement, functions)
  const visit = (node) => {
    if (ts.isFunctionDeclaration(node) && node.name !== undefined) functions.set(node.name.text, node)
    if (ts.isVariableDeclaration(node) && node.initializer !== undefined && isFunction(node.initializer))
      functions.set(node.name.getText(file), node.initializer)
    ts.forEachChild(node, visit)
  }
  visit(file)
  return loaded
}

function addImported(path, statement, functions) {
  if (!ts.isImportDeclaration(statement) || !statement.moduleSpecifier.text.startsWith('.')) return
  const from = join(dirname(path), statement.moduleSpecifier.text.replace(/\.js$/, '.ts'))
  if (from.includes('/src/') || !existsSync(from)) return
  const theirs = load(from).functions
  for (const { name } of statement.importClause?.namedBindings?.elements ?? [])
    if (theirs.has(name.text)) functions.set(name.text, theirs.get(name.text))
}

/** Whether something in `node` calls expect, also in functions that are named there. */
function expects(node, seen = new Set()) {
  if (ts.isIdentifier(node)) {
    if (node.text === 'expect') return true
    const called = load(node.getSourceFile().fileName).functions.get(node.text)
    if (called === undefined || seen.has(called)) return false
    seen.add(called)
    return expects(called, seen)
  }
  return ts.forEachChild(node, (child) => expects(child, seen) || undefined) ?? false
}

let tests = 0
const silent = []
const listed = execFileSync('git', ['ls-files', '-co', '--exclude-standard', '*.test.ts'], { cwd: top })
for (const path of listed.toString().trim().split('\n')) {
  const { file } = load(join(top, path))
  const visit = (node) => {
    if (ts.isCallExpression(node) && TEST.test(node.expression.getText(file))) {
      const body = node.arguments.find(isFunction)
      const [name] = node.arguments
      if (body !== undefined && (ts.isStringLiteralLike(name) || ts.isTemplateExpression(name))) {
        tests++
        if (!expects(body)) {
          const { line } = file.getLineAndCharacterOfPosition(node.getStart(file))
          silent.push(`${path}:${line + 1}: ${name.getText(file)}`)
        }
      }
    }
    ts.forEachChild(node, visit)
  }
  visit(file)
}
for (const one of silent) console.error(`expectations: ${one} expects nothing`)
if (silent.length > 0) {
  console.error(`expectations: ${silent.length} of ${tests} tests end in no state that is asserted`)
  process.exitCode = 1
}
