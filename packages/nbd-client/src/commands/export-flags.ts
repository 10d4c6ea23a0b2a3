import { parseSizeInUnits } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import type { ExportOptions } from '../engine/export-options.js'

/** Bytes of a name, and of a description (NBD's proto.md, "Values"). */
const MAXIMUM_STRING = 4096

/**
 * Reads an export as operators write it: `name[,offset=<size>][,size=<size>][,read-only][,description=<text>]`.
 * The description is the rest of the line, commas and all.
 * @throws UsageError that says what is wrong with it
 */
export function parseExport(text: string): ExportOptions {
  const [, head = text, description] = /^(.*?),description=(.*)$/s.exec(text) ?? []
  const [name = '', ...words] = head.split(',')
  const parsed: { -readonly [Key in keyof ExportOptions]: ExportOptions[Key] } = { name }
  if (description !== undefined) parsed.description = description
  const given = new Set<string>()
  for (const word of words) {
    const [, key = word, value] = /^([^=]*)=(.*)$/s.exec(word) ?? []
    if (given.has(key)) throw new UsageError(`--export "${text}": "${key}" is given twice`)
    given.add(key)
    if (key === 'read-only' && value === undefined) parsed.readOnly = true
    else if (key === 'size' && value !== undefined)
      parsed.size = parseSizeInUnits(value, `--export "${name}": size`, 4096)
    else if (key === 'offset' && value !== undefined)
      parsed.offset = value === '0' ? 0 : parseSizeInUnits(value, `--export "${name}": offset`, 4096)
    else
      throw new UsageError(
        `--export "${text}": "${word}" is not one of offset=<size>, size=<size>, read-only, description=<text>`,
      )
  }
  checkString(name, '--export: its name')
  checkString(description ?? '', `--export "${name}": its description`)
  return parsed
}

/** @param what names the option @throws UsageError */
export function checkString(text: string, what: string): void {
  const bytes = Buffer.byteLength(text)
  if (bytes > MAXIMUM_STRING)
    throw new UsageError(`${what} has ${bytes} bytes, and at most ${MAXIMUM_STRING}`)
}

/**
 * The exports of a volume of `size` bytes, as the command line asks for them.
 * @throws UsageError: two of one name, one beyond the end
 */
export function checkExports(exports: readonly ExportOptions[], size: number): readonly ExportOptions[] {
  const names = new Set<string>()
  for (const { name = '', offset = 0, size: length = 0 } of exports) {
    if (names.has(name)) throw new UsageError(`--export "${name}" is given twice`)
    names.add(name)
    if (Number(offset) >= size || Number(offset) + Number(length) > size)
      throw new UsageError(`--export "${name}" reaches beyond the end of the volume (${size} bytes)`)
  }
  return exports
}
