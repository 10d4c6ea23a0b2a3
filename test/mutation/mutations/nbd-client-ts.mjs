const source = (name) => `packages/nbd-client/src/${name}.ts`
const unit = (name) => `unit packages/nbd-client/test/${name}.test.ts`

export const mutations = [
  {
    name: 'replica-beside-itself',
    file: source('placement'),
    find: '(room[server] ?? 0) > 0 && !excluded.has(server))',
    replace: '(room[server] ?? 0) > 0 && excluded.size >= 0)',
    why: 'Two replicas of a slab may be on one server, and are lost together.',
    tests: [unit('placement')],
  },
  {
    name: 'index-of-a-server-on-record',
    file: source('server-indexes'),
    find: 'return followed && table.heldBy(server).size === 0',
    replace: 'return followed',
    why: 'An incarnation that still has slabs is no server of the volume any more.',
    tests: [unit('reconnect')],
  },
  {
    name: 'queue-pairs-stay',
    file: source('server-indexes'),
    find: '      queuePairs[index]?.close()\n',
    replace: '',
    why: 'Each break of a link leaves a queue pair of each lane, with its socket.',
    tests: [unit('breaks')],
  },
  {
    name: 'no-memory-while-servers-are-gone',
    file: source('thin-slabs'),
    find: ' && !this.#options.waits()) {',
    replace: ') {',
    why: 'The first WRITE to a slab of a thin volume fails with ENOSPC because its server is away for a moment.',
    tests: [unit('breaks')],
  },
  {
    name: 'later-incarnation-by-index',
    file: source('take-over'),
    find: '  for (const server of kept)\n    if (!failed.has(server.index) || (',
    replace:
      '  for (const server of kept.toSorted((a, b) => a.index - b.index))\n    if (!failed.has(server.index) || (',
    why: 'Of two incarnations of a server the one with the larger index counts, although indexes are used again.',
    tests: [unit('take-over')],
  },
  {
    name: 'placement-paints-itself-into-a-corner',
    file: source('placement'),
    find: 'if (place === undefined || !fits(without(left, place), toCome, replicas))',
    replace: 'if (place === undefined || !fits(without(left, place), 0, replicas))',
    why: 'Random places leave room on one server only, which the last replicas cannot use.',
    tests: [unit('placement')],
  },
  {
    name: 'state-folder-open-to-group',
    file: source('state-folder'),
    find: 'if ((mode & 0o077) !== 0 || uid',
    replace: 'if ((mode & 0o007) !== 0 || uid',
    why: 'A state folder, with the tokens that open the volume, may be read by a group.',
    tests: [unit('state-folder-mode')],
  },
  {
    name: 'lock-of-another-folder',
    file: source('state-folder'),
    find: 'if (given.dev !== wanted.dev || given.ino !== wanted.ino)',
    replace: 'if (given.dev !== wanted.dev && given.ino !== wanted.ino)',
    why: 'A process goes on in a folder whose lock another process may take.',
    tests: [unit('state-folder')],
  },
  {
    name: 'volume-json-not-synced',
    file: source('state-folder'),
    find: '      fsyncSync(file)\n',
    replace: '',
    why: 'volume.json gets its name before its contents are on the disk: after a power cut it is empty.',
    tests: [unit('state-folder-sync')],
  },
  {
    name: 'folder-of-volume-json-not-synced',
    file: source('state-folder'),
    find: '      fsyncSync(folder)\n',
    replace: '',
    why: 'A server is used before the folder says on disk that volume.json names it.',
    tests: [unit('state-folder-sync')],
  },
  {
    name: 'unknown-field-in-volume-json',
    file: source('kept-volume'),
    find: 'if (other !== undefined)\n',
    replace: "if (other === '')\n",
    why: 'A field of volume.json whose name is damaged is passed over, and with it what it said.',
    tests: [unit('state-folder'), unit('damaged-state')],
  },
  {
    name: 'same-index-twice',
    file: source('kept-volume'),
    find: 'if (new Set(servers.map(({ index }) => index)).size < servers.length)',
    replace: 'if (new Set(servers.map(({ index }) => index)).size === 0)',
    why: 'Two servers in volume.json may have one index, and the pages of one are looked for at the other.',
    tests: [unit('state-folder'), unit('damaged-state')],
  },
  {
    name: 'missing-map-is-made',
    file: source('take-over'),
    find: 'if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0) continue',
    replace: 'if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) >= 0) continue',
    why: 'A volume whose page map is gone is taken over all the same, and its pages read as zeros.',
    tests: [unit('restart'), unit('damaged-state')],
  },
  {
    name: 'half-filled-replica-adopted',
    file: source('take-over'),
    find: 'const complete = replica.live || (replica.leaving && adopted.length === 0)',
    replace: 'const complete = replica.live || adopted.length >= 0',
    why: 'A replica that was being filled when the process died counts as whole afterwards.',
    tests: [unit('take-over')],
  },
  {
    name: 'failed-server-believed',
    file: source('take-over'),
    find: '(!alone || readable.length === 1) &&',
    replace: '(!alone || readable.length >= 1) &&',
    why: 'A server that failed while others went on is believed after a restart, though it missed writes.',
    tests: [unit('take-over')],
  },
  {
    name: 'outdated-backup-believed',
    file: source('volume-keeper'),
    find: '    if (backup === undefined) this.#folder.forgetBackup()\n',
    replace: '',
    why: 'A backup is believed although a process without it has written since.',
    tests: [unit('restart')],
  },
  {
    name: 'volume-json-after-use',
    file: source('volume-keeper'),
    find: `    this.#folder.write(kept)
    this.#kept = kept`,
    replace: `    this.#kept = kept
    this.#folder.write(kept)`,
    why: 'What could not be written counts as written, and is never written again.',
    tests: [unit('volume-keeper')],
  },
  {
    name: 'given-back-while-written',
    file: source('migration'),
    find: '    await engine.synchronize()\n    await server.giveBack(remote)',
    replace: '    void engine.synchronize()\n    await server.giveBack(remote)',
    why: 'A slab that has moved is given back while WRITEs to its old place may be under way.',
    tests: [unit('given-back')],
  },
  {
    name: 'first-failed-keeps-slab',
    file: source('slab-table'),
    find: 'failed.indexOf(replica.server) <= last)',
    replace: 'failed.indexOf(replica.server) >= last)',
    why: 'Of servers that failed one after the other the first is waited for, which missed what the last one has.',
    tests: [unit('reconnect'), 'unit test/e2e/reconnect.test.ts', 'unit test/e2e/replicas.test.ts'],
  },
  {
    name: 'take-over-said-before-it-is-kept',
    file: source('volume-keeper'),
    find: 'else this.#write({ takeOver })',
    replace: 'else this.#kept = { ...this.#kept, takeOver }',
    why: 'A process that dies behind its take-over is followed by one whose number may be lower than the servers’.',
    tests: [unit('fencing')],
  },
  {
    name: 'hand-over-raises-what-cannot-be-read',
    file: source('volume-keeper'),
    find: '    if (handedOver && before === undefined) return NO_TAKE_OVER\n',
    replace: '',
    why: 'A process of a version before numbers cannot go back to its volume when its successor fails.',
    tests: [unit('fencing'), unit('upgrade')],
  },
  {
    name: 'fenced-process-calls-on',
    file: source('recall'),
    find: '        if (failure instanceof FencedError) return fenced(failure)\n',
    replace: '',
    why: 'A process whose volume another one has taken over calls the servers back for ever.',
    tests: [unit('recall')],
  },
  {
    name: 'fenced-server-is-lost',
    file: source('recall'),
    find: '      if (!(failure instanceof FencedError)) return failed(failure, false)\n',
    replace:
      "      if (!(failure instanceof FencedError) || failure.message !== '') return failed(failure, false)\n",
    why: 'A process takes what another one has for lost, and ends the device.',
    tests: [unit('recall')],
  },
  {
    name: 'fenced-process-says-goodbye',
    file: source('volume'),
    find: '    this.#fenced = failure\n    this.#leaving = true\n',
    replace: '    this.#fenced = failure\n',
    why: 'A process that another one is just taking a volume over from ends the sessions that it still has.',
    tests: [unit('fencing')],
  },
  {
    name: 'given-back-though-used',
    file: source('take-over'),
    find: 'takeOver: nextTakeOver(takeOver), unattended: true }',
    replace: 'takeOver: nextTakeOver(takeOver) }',
    why: 'A copy of a state folder, started where there is no device, ends the volume of the process that serves it.',
    tests: [unit('fencing')],
  },
  {
    name: 'session-of-another-is-ended',
    file: source('recall'),
    find: '      if (shared(gone)) return\n',
    replace: '',
    why: 'A server that failed while it was taken back is told goodbye, and with it the slabs that are waited for.',
    tests: [unit('recall')],
  },
  {
    name: 'lost-session-takes-part',
    file: source('volume'),
    find: `        throw new Error(\`it failed while it joined\${over === undefined ? '' : \`: \${over}\`}\`)
    } catch (failure) {
      this.#indexes.giveUp(server, (failure as Error).message)
      throw failure
    }
    adopt(server)
    server.joining = undefined
    server.failure = undefined
    this.#watch(server)
`,
    replace: `        void over
    } catch (failure) {
      this.#indexes.giveUp(server, (failure as Error).message)
      throw failure
    }
    server.joining = undefined
    server.failure = undefined
    this.#watch(server)
    void Promise.resolve().then(() => adopt(server))
`,
    why: 'The failure of a server that came back is handled before it has the slabs that it came back with.',
    tests: [unit('reconnect')],
  },
  {
    name: 'key-refused-is-for-ever',
    file: source('resume-session'),
    find: "['ETIMEDOUT', 'EACCES', 'EUSERS', 'EXDEV']",
    replace: "['ETIMEDOUT', 'EUSERS', 'EXDEV']",
    why: 'A server that refuses a key once is given up with the pages that only it has.',
    tests: [unit('resume-session')],
  },
  {
    name: 'server-given-up-too-soon',
    file: source('recall'),
    find: 'performance.now() - refusedSince >= REFUSED_MS',
    replace: 'performance.now() - refusedSince > -REFUSED_MS',
    why: 'A server is given up at the first connection that is refused.',
    tests: [unit('recall')],
  },
  {
    name: 'left-claimed-not-settled',
    file: source('settle-pages'),
    find: 'if (found !== undefined) await request(socket, WRITE, page, found)',
    replace: 'if (found !== undefined && pages.length > 1024) await request(socket, WRITE, page, found)',
    why: 'Pages of a WRITE that nobody answered stay different on their replicas.',
    tests: [unit('settle-pages')],
  },
  {
    name: 'vacated-while-written',
    file: source('thin-slabs'),
    find: '      await engine.synchronize()\n      const back',
    replace: '      void engine.synchronize()\n      const back',
    why: 'The memory of a slab that became empty goes back while operations may be under way there.',
    tests: [unit('given-back')],
  },
  {
    name: 'own-state-of-another-tenant',
    file: source('own-state-names'),
    find: 'thin, access.tenant ?? null])',
    replace: 'thin])',
    why: 'The state of one tenant’s swap is taken up by a command of another one, whom no server knows: its pages are lost.',
    tests: [unit('own-state')],
  },
  {
    name: 'own-state-beside-what-is-left-behind',
    file: source('own-state'),
    find: 'device !== undefined && exists(device)',
    replace: 'device === undefined && exists(device)',
    why: 'The same command after a crash makes one more device, and nobody serves the one that has the pages.',
    tests: [unit('own-state')],
  },
  {
    name: 'lock-that-was-removed',
    file: source('state-folder'),
    find: 'if (folder.#isInPlace()) return folder',
    replace: 'return folder',
    why: 'Two processes have the lock of one state folder: one of them a lock that was removed.',
    tests: [unit('own-state')],
  },
  {
    name: 'failure-ends-who-has-the-pages',
    file: source('last-resort'),
    find: "const ends = holder !== 'process'",
    replace: 'const ends = true',
    why: 'One exception in control code ends the only process that has the pages.',
    tests: ['unit test/e2e/control-fault.test.ts'],
  },
  {
    name: 'failure-with-state-goes-on',
    file: source('last-resort'),
    find: "const ends = holder !== 'process'",
    replace: "const ends = holder === 'nobody'",
    why: 'A process whose control code has failed goes on, though the next one could take everything over.',
    tests: ['unit test/e2e/control-fault.test.ts'],
  },
]
