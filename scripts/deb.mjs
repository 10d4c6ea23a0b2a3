// npm run deb: build/deb/rdmakit_VERSION_ARCHITECTURE.deb of what `npm run build` has made here. On a path of its own, under
// names that Debian's nbd-client has not: the program rdmakit, its pages, its completion, its units. Prints the file's path.
import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'

const top = dirname(dirname(fileURLToPath(import.meta.url)))
const out = join(top, 'build', 'deb')
const root = join(out, 'root')
const home = 'usr/lib/rdmakit'

/** Programs as few files, which load addons by name and nothing else of what their packages depend on. */
const packages = {
  rdmakit: ['bin', 'dist'],
  '@rdmakit/swap-server': ['bin', 'dist/cli.js', 'dist/cli', 'dist/build.json'],
  '@rdmakit/nbd-client': ['bin', 'dist/cli.js', 'dist/cli', 'dist/build.json', 'dist/addon.cjs'],
  '@rdmakit/ring-transport': ['dist/addon.cjs'],
  '@rdmakit/verbs': ['dist/addon.cjs', 'dist/load-addon.cjs'],
}

const run = (command, ...words) => execFileSync(command, words, { encoding: 'utf8' }).trim()
const sourceOf = (name) => join(top, 'packages', name.split('/').at(-1))

function put(path, content, mode = 0o644) {
  const file = join(root, path)
  mkdirSync(dirname(file), { recursive: true, mode: 0o755 })
  writeFileSync(file, content, { mode })
}

function copy(from, path) {
  mkdirSync(dirname(join(root, path)), { recursive: true, mode: 0o755 })
  cpSync(from, join(root, path), { recursive: true, filter: (file) => !/\.(d\.ts|map)$/.test(file) })
}

/** The same bytes whenever it is built from the same files. */
const compressed = (text) => gzipSync(text, { level: 9 })

rmSync(out, { recursive: true, force: true })
mkdirSync(root, { recursive: true, mode: 0o755 })
for (const [name, files] of Object.entries(packages)) {
  const place = join(home, 'node_modules', name)
  for (const file of ['package.json', ...files]) copy(join(sourceOf(name), file), join(place, file))
  if (!files.includes('dist/addon.cjs')) continue
  const addon = `build/Release/${name.split('/').at(-1).replace('-', '_')}.node`
  copy(join(sourceOf(name), addon), join(place, addon))
  run('strip', '--strip-unneeded', join(root, place, addon))
}
mkdirSync(join(root, 'usr/bin'), { recursive: true, mode: 0o755 })
symlinkSync(`../lib/rdmakit/node_modules/rdmakit/bin/rdmakit.js`, join(root, 'usr/bin/rdmakit'))

const { version } = JSON.parse(readFileSync(join(sourceOf('rdmakit'), 'package.json'), 'utf8'))
const { commands } = await import(join(sourceOf('rdmakit'), 'dist/program.js'))
const { commandTree } = await import(join(sourceOf('rdmakit'), 'dist/command-tree.js'))
const { manualPages } = await import(join(sourceOf('rdmakit'), 'dist/manual.js'))
const { bashCompletion } = await import(join(sourceOf('rdmakit'), 'dist/bash-completion.js'))
const { fishCompletion } = await import(join(sourceOf('rdmakit'), 'dist/fish-completion.js'))
const tree = await commandTree(commands())
for (const { name, text } of manualPages(tree, version))
  put(`usr/share/man/man1/${name}.gz`, compressed(text))
put('usr/share/bash-completion/completions/rdmakit', bashCompletion(tree))
put('usr/share/fish/vendor_completions.d/rdmakit.fish', fishCompletion(tree))

const example = join(top, 'examples/two-hosts')
const doc = 'usr/share/doc/rdmakit'
copy(example, join(doc, 'examples/two-hosts'))
for (const unit of ['rdmakit-swap-server@.service', 'rdmakit-nbd@.service']) {
  const text = readFileSync(join(example, 'systemd', unit), 'utf8')
    .replaceAll('/usr/local/bin/', '/usr/bin/')
    .replaceAll('/opt/rdmakit/docs', `/${doc}`)
  put(`usr/lib/systemd/system/${unit}`, text)
  put(join(doc, 'examples/two-hosts/systemd', unit), text)
}
put('usr/lib/sysusers.d/rdmakit.conf', readFileSync(join(example, 'lender/sysusers.conf')))
// As debhelper makes them. Debian 12's systemd has dpkg triggers for its catalog and for binfmt.d only: it makes no user.
const reload = `[ -n "$DPKG_ROOT" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload || true`
put(
  'DEBIAN/postinst',
  `#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
systemd-sysusers \${DPKG_ROOT:+--root="$DPKG_ROOT"} rdmakit.conf
${reload}
`,
  0o755,
)
put('DEBIAN/postrm', `#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n${reload}\n`, 0o755)
copy(join(top, 'docs/operations.md'), join(doc, 'operations.md'))
const licence = readFileSync(join(top, 'LICENSE'), 'utf8')
put(
  join(doc, 'copyright'),
  `${licence}\nThe programs contain other packages, whose licences are in /${home}/node_modules/@rdmakit/*/dist/cli/third-party-licenses.txt.\n`,
)

const architecture = run('dpkg', '--print-architecture')
const size = run('du', '-sk', '--apparent-size', join(root, 'usr')).split('\t')[0]
put(
  'DEBIAN/control',
  `Package: rdmakit
Version: ${version}
Architecture: ${architecture}
Maintainer: rdmakit
Installed-Size: ${size}
Section: net
Priority: optional
Depends: nodejs (>= 20.19), libc6 (>= 2.36), libstdc++6 (>= 12), systemd | systemd-standalone-sysusers
Recommends: libibverbs1, librdmacm1, ibverbs-providers, libgnutls30, liblz4-1
Description: remote swap over RDMA: lend this machine's memory, or use others'
 A page server that lends memory by one-sided RDMA, and a client that makes a
 block device of it, for swap, or an NBD export. Without RDMA hardware it works
 over TCP in user space and, on one machine, over shared memory.
 .
 The program is rdmakit; its client is "rdmakit attach", not the nbd-client of
 the package of that name.
`,
)
const file = join(out, `rdmakit_${version}_${architecture}.deb`)
run('dpkg-deb', '--root-owner-group', '--build', root, file)
console.log(file)
