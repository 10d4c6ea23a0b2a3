// Loads the packages in a context of their own (vm), as jest does, and uses them there: builtins, the addons and what they
// make are of the other realm. Prints what came of it.
import { readFileSync } from 'node:fs'
import { fileURLToPath, pathToFileURL } from 'node:url'
import vm from 'node:vm'

const OURS = /^@rdmakit\/|^\./
const globals = Object.fromEntries(
  Object.getOwnPropertyNames(globalThis)
    .filter((name) => !vm.runInNewContext(`Object.getOwnPropertyNames(globalThis)`).includes(name))
    .map((name) => [name, globalThis[name]]),
)
const context = vm.createContext(globals)
const modules = new Map()

const locate = (specifier, from) =>
  OURS.test(specifier)
    ? specifier.startsWith('.')
      ? fileURLToPath(new URL(specifier, from))
      : fileURLToPath(import.meta.resolve(specifier))
    : undefined

async function load(specifier, from) {
  const path = locate(specifier, from)
  const known = modules.get(path ?? specifier)
  if (known !== undefined) return known
  const made = path === undefined ? await foreign(specifier) : own(path)
  modules.set(path ?? specifier, made)
  return made
}

/** A builtin, or a package of the other realm. */
async function foreign(specifier) {
  const exported = await import(specifier)
  const names = Object.keys(exported)
  return new vm.SyntheticModule(
    names,
    function () {
      for (const name of names) this.setExport(name, exported[name])
    },
    { context },
  )
}

const own = (path) =>
  new vm.SourceTextModule(readFileSync(path, 'utf8'), {
    context,
    identifier: pathToFileURL(path).href,
    initializeImportMeta: (meta) => {
      meta.url = pathToFileURL(path).href
    },
    importModuleDynamically: async (specifier, module) => link(await load(specifier, module.identifier)),
  })

async function link(module) {
  if (module.status === 'unlinked')
    await module.link((specifier, { identifier }) => load(specifier, identifier))
  if (module.status === 'linked') await module.evaluate()
  return module
}

const program = new vm.SourceTextModule(
  `
  import { RingConnection, RingServer } from '@rdmakit/ring-transport'

  const tried = async (work) => {
    try {
      await work
      return ['nothing']
    } catch (failure) {
      return [failure.name, failure.code, failure instanceof Error]
    }
  }
  let transmitted
  const arrived = new Promise((resolve) => {
    transmitted = resolve
  })
  const server = await RingServer.listen('iwarp://127.0.0.1:0', {
    capacity: 2 ** 16,
    onConnection: (connection) => {
      connection.messages.subscribe((message) => transmitted(message.length))
      connection.handle((request) => {
        if (request.length === 0) throw Object.assign(new Error('full'), { code: 'ENOSPC' })
        return request.copy()
      })
    },
  })
  const connection = await RingConnection.connect(server.uri, { capacity: 2 ** 16 })
  const echoed = [...(await connection.request(Uint8Array.of(1, 2, 3)))]
  await connection.transmit(new Uint8Array(2 ** 17))
  const remote = await tried(connection.request(new Uint8Array()))
  const domain = connection.context.allocateProtectionDomain()
  const registered = [new Uint8Array(4096), new ArrayBuffer(4096)].map(
    (memory) => domain.registerMemoryRegion(memory).length,
  )
  const { uri } = server
  const taken = await tried(RingServer.listen(uri, { onConnection: () => {} }))
  await connection.close()
  await server.close()
  const failure = await tried(RingConnection.connect(uri))
  export const result = {
    realm: new Uint8Array() instanceof outerUint8Array ? 'the same' : 'another',
    echoed,
    transmitted: await arrived,
    registered,
    taken,
    failure,
    remote,
  }
  `,
  { context, identifier: import.meta.url },
)
context.outerUint8Array = Uint8Array
await link(program)
process.stdout.write(JSON.stringify(program.namespace.result))
