// Runs a script of this checkout on the packages of another. Given to Node before the script:
//   node --import file:///…/against/resolve.js?checkout=/folder script.js
// Node resolves a package from the location of the importing file, so a script of ours would always find
// ours. The hook makes the import come from the other checkout. Nothing is copied, and no environment
// variable is needed. Both builds run with the hook, so that both have its start-up cost.
import { register } from 'node:module'
import { pathToFileURL } from 'node:url'

type Next = (specifier: string, context: { parentURL?: string | undefined }) => unknown

let checkout = ''

/** Called on the thread where Node runs the hooks. */
export function initialize(folder: string): void {
  checkout = folder
}

export function resolve(specifier: string, context: { parentURL?: string | undefined }, next: Next): unknown {
  if (!specifier.startsWith('@rdmakit/')) return next(specifier, context)
  return next(specifier, { ...context, parentURL: pathToFileURL(`${checkout}/package.json`).href })
}

const asked = new URL(import.meta.url).searchParams.get('checkout')
// Without the query this is the hook itself, or a test.
if (asked !== null) register(new URL('resolve.js', import.meta.url), { data: asked })
