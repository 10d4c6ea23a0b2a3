// Each test that addons-asan.mjs leaves out is there: one that gets another name would run where it cannot hold. Reads, and
// runs nothing.
// Usage: node scripts/checks/left-out.mjs
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { LEFT_OUT } from '../addons-asan-left-out.mjs'

const top = resolve(import.meta.dirname, '../..')
const files = execFileSync('git', ['ls-files', 'packages/*.test.ts'], { cwd: top, encoding: 'utf8' })
const tests = files
  .trim()
  .split('\n')
  .map((file) => readFileSync(join(top, file), 'utf8'))
for (const words of LEFT_OUT)
  if (!tests.some((test) => test.includes(words))) {
    console.error(`scripts/addons-asan-left-out.mjs: there is no test "… ${words} …"`)
    process.exitCode = 1
  }
