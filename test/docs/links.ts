// The links of the Markdown files that lead to something in the repository.
import { existsSync, statSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import GithubSlugger from 'github-slugger'
import { top } from '../lab/base/paths.js'
import { tokensOf } from './blocks.js'

/** As GitHub names the headings of a file. */
function anchorsOf(file: string): Set<string> {
  const slugger = new GithubSlugger()
  const tokens = tokensOf(file)
  const headings = tokens.filter((_, at) => tokens[at - 1]?.type === 'heading_open')
  return new Set(
    headings.map(({ children }) => slugger.slug((children ?? []).map(({ content }) => content).join(''))),
  )
}

/** What links and pictures of a file lead to, but for addresses with a scheme. */
export function targetsOf(file: string): string[] {
  const inline = tokensOf(file).flatMap(({ children }) => children ?? [])
  return inline
    .map((token) => token.attrGet('href') ?? token.attrGet('src'))
    .filter((target): target is string => target !== null && !/^[a-z]+:/i.test(target))
}

/** @returns why a link leads nowhere; undefined: it leads to something */
export function brokenLink(file: string, target: string): string | undefined {
  const [path = '', anchor] = decodeURI(target).split('#')
  const goal = path === '' ? file : relative(top, join(top, dirname(file), path))
  if (goal.startsWith('..') || !existsSync(join(top, goal))) return `${target}: there is no ${goal}`
  if (anchor === undefined) return undefined
  if (statSync(join(top, goal)).isDirectory() || !goal.endsWith('.md'))
    return `${target}: ${goal} has no headings`
  return anchorsOf(goal).has(anchor) ? undefined : `${target}: ${goal} has no heading #${anchor}`
}
