const source = (name) => `packages/remote-volume/src/${name}.ts`
const unit = (name) => `unit packages/remote-volume/test/${name}.test.ts`
const client = (name) => `unit packages/nbd-client/test/${name}.test.ts`

export const mutations = [
  {
    name: 'last-of-a-new-slab-is-dropped',
    file: source('slabs/slab-table'),
    find: 'if (!replica.server.away || !this.#isLast(slab, replica.server.index, failed)) this.drop(slab, replica)',
    replace: 'if (!replica.server.away || failed.length > 0) this.drop(slab, replica)',
    why: 'A slab of a thin volume is lost whose server fails just after it got its place there, and comes back.',
    tests: [unit('slab-table')],
  },
  {
    name: 'lost-though-it-is-up',
    file: source('take-over/take-over-volume'),
    find: 'if (!server.uris.some((uri) => up.has(uri))) progress(',
    replace: 'if (up.size >= 0) progress(',
    why: 'A take-over says of servers that are up that they are lost.',
    tests: [client('volume/reconnect')],
  },
  {
    name: 'synchronize-waits-for-ever',
    file: source('engine/volume-engine'),
    find: 'milliseconds: this.#patience,',
    replace: 'milliseconds: 2 ** 31 - 1,',
    why: 'Work on slabs stands still for ever when a device does not give its work requests back.',
    tests: [client('engine/engine')],
  },
  {
    name: 'replica-beside-itself',
    file: source('slabs/placement'),
    find: '(room[server] ?? 0) > 0 && !excluded.has(server))',
    replace: '(room[server] ?? 0) > 0 && excluded.size >= 0)',
    why: 'Two replicas of a slab may be on one server, and are lost together.',
    tests: [unit('placement')],
  },
  {
    name: 'index-of-a-server-on-record',
    file: source('volume/server-indexes'),
    find: 'return followed && table.heldBy(server).size === 0',
    replace: 'return followed',
    why: 'An incarnation that still has slabs is no server of the volume any more.',
    tests: [unit('server-indexes')],
  },
  {
    name: 'later-incarnation-by-index',
    file: source('take-over/take-sessions'),
    find: '  for (const server of kept)\n    if (!failed.has(server.index) || (',
    replace:
      '  for (const server of kept.toSorted((a, b) => a.index - b.index))\n    if (!failed.has(server.index) || (',
    why: 'Of two incarnations of a server the one with the larger index counts, although indexes are used again.',
    tests: [unit('take-over')],
  },
  {
    name: 'placement-paints-itself-into-a-corner',
    file: source('slabs/placement'),
    find: 'if (place === undefined || !fits(without(left, place), toCome, replicas))',
    replace: 'if (place === undefined || !fits(without(left, place), 0, replicas))',
    why: 'Random places leave room on one server only, which the last replicas cannot use.',
    tests: [unit('placement')],
  },
  {
    name: 'token-as-a-field-quoted',
    file: source('take-over/json-fields'),
    find: 'SHOWN_FIELD.test(other) ? `',
    replace: 'SHOWN_FIELD.test(other) || other.length < 64 ? `',
    why: 'The message about a damaged state folder has the token that opens the volume.',
    tests: ['unit test/e2e/programs/secrets.test.ts'],
  },
  {
    name: 'unknown-field-in-volume-json',
    file: source('take-over/json-fields'),
    find: 'if (other !== undefined)\n',
    replace: "if (other === '')\n",
    why: 'A field of volume.json whose name is damaged is passed over, and with it what it said.',
    tests: [client('upgrade/state-folder'), client('upgrade/damaged-state')],
  },
  {
    name: 'same-index-twice',
    file: source('take-over/kept-volume'),
    find: 'if (new Set(servers.map(({ index }) => index)).size < servers.length)',
    replace: 'if (new Set(servers.map(({ index }) => index)).size === 0)',
    why: 'Two servers in volume.json may have one index, and the pages of one are looked for at the other.',
    tests: [client('upgrade/state-folder'), client('upgrade/damaged-state')],
  },
  {
    name: 'missing-map-is-made',
    file: source('take-over/take-over-volume'),
    find: 'if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0) continue',
    replace: 'if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) >= 0) continue',
    why: 'A volume whose page map is gone is taken over all the same, and its pages read as zeros.',
    tests: [client('volume/restart'), client('upgrade/damaged-state')],
  },
  {
    name: 'half-filled-replica-adopted',
    file: source('take-over/adopt-slabs'),
    find: 'const complete = replica.live || (replica.leaving && adopted.length === 0)',
    replace: 'const complete = replica.live || adopted.length >= 0',
    why: 'A replica that was being filled when the process died counts as whole afterwards.',
    tests: [unit('take-over')],
  },
  {
    name: 'failed-server-believed',
    file: source('take-over/take-sessions'),
    find: '(!alone || readable.length === 1) &&',
    replace: '(!alone || readable.length >= 1) &&',
    why: 'A server that failed while others went on is believed after a restart, though it missed writes.',
    tests: [unit('take-over')],
  },
  {
    name: 'given-back-while-written',
    file: source('slabs/migration'),
    find: '    await engine.synchronize()\n    await server.giveBack(remote)',
    replace: '    void engine.synchronize()\n    await server.giveBack(remote)',
    why: 'A slab that has moved is given back while WRITEs to its old place may be under way.',
    tests: [client('volume/given-back')],
  },
  {
    name: 'moved-slab-dropped-with-its-servers',
    file: source('slabs/migration'),
    find: 'if (table.dropRetired(slab, replica) === undefined)',
    replace: 'if (table.drop(slab, replica) === undefined)',
    why: 'A slab that moves while both servers fail is given up although the old one is waited for.',
    tests: [client('volume/migration')],
  },
  {
    name: 'first-failed-keeps-slab',
    file: source('slabs/slab-table'),
    find: 'failed.indexOf(replica.server) <= last)',
    replace: 'failed.indexOf(replica.server) >= last)',
    why: 'Of servers that failed one after the other the first is waited for, which missed what the last one has.',
    tests: [
      client('volume/reconnect'),
      'unit test/e2e/failures/reconnect.test.ts',
      'unit test/e2e/failures/replicas.test.ts',
    ],
  },
  {
    name: 'fenced-process-calls-on',
    file: source('servers/server-reconnector'),
    find: '        if (failure instanceof FencedError) return fenced(failure)\n',
    replace: '',
    why: 'A process whose volume another one has taken over calls the servers back for ever.',
    tests: [unit('server-reconnector')],
  },
  {
    name: 'fenced-server-is-lost',
    file: source('servers/server-reconnector'),
    find: '      if (!(failure instanceof FencedError)) return failed(failure, false)\n',
    replace:
      "      if (!(failure instanceof FencedError) || failure.message !== '') return failed(failure, false)\n",
    why: 'A process takes what another one has for lost, and ends the device.',
    tests: [unit('server-reconnector')],
  },
  {
    name: 'fenced-process-says-goodbye',
    file: source('volume/volume-parts'),
    find: '    state.fenced = failure\n    state.leaving = true\n',
    replace: '    state.fenced = failure\n',
    why: 'A process that another one is just taking a volume over from ends the sessions that it still has.',
    tests: [client('volume/fencing')],
  },
  {
    name: 'given-back-though-used',
    file: source('take-over/end-kept'),
    find: 'takeOver: nextTakeOver(takeOver), unattended: true }',
    replace: 'takeOver: nextTakeOver(takeOver) }',
    why: 'A copy of a state folder, started where there is no device, ends the volume of the process that serves it.',
    tests: [client('volume/fencing')],
  },
  {
    name: 'session-of-another-is-ended',
    file: source('servers/server-reconnector'),
    find: '      if (shared(gone)) return\n',
    replace: '',
    why: 'A server that failed while it was taken back is told goodbye, and with it the slabs that are waited for.',
    tests: [unit('server-reconnector')],
  },
  {
    name: 'lost-session-takes-part',
    file: source('volume/server-membership'),
    find: `        throw new Error(\`it failed while it joined\${over === undefined ? '' : \`: \${over}\`}\`)
    } catch (failure) {
      this.#indexes.giveUp(server, (failure as Error).message)
      throw failure
    }
    adopt?.(server)
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
    void Promise.resolve().then(() => adopt?.(server))
`,
    why: 'The failure of a server that came back is handled before it has the slabs that it came back with.',
    tests: [client('volume/reconnect')],
  },
  {
    name: 'key-refused-is-for-ever',
    file: source('servers/resume-session'),
    find: "ended ||= meaning === 'ended'",
    replace: "ended ||= meaning === 'ended' || meaning === 'forbidden'",
    why: 'A server that refuses a key once is given up with the pages that only it has.',
    tests: [unit('resume-session')],
  },
  {
    name: 'forbidden-server-is-lost',
    file: source('take-over/take-sessions'),
    find: '      if (refusing !== undefined) throw refusedBy(refusing)\n',
    replace: "      if (refusing !== undefined) progress('it refuses')\n",
    why: 'A take-over with a wrong key file gives up what only that server has.',
    tests: [unit('take-over')],
  },
  {
    name: 'memory-that-is-gone-is-waited-for',
    file: source('volume/server-membership'),
    find: ' && !server.session.gone\n',
    replace: '\n',
    why: 'Requests wait for a server that has said itself that its memory is gone.',
    tests: [client('volume/reconnect'), 'unit test/e2e/failures/failure.test.ts'],
  },
  {
    name: 'unproven-end-keeps-server-out',
    file: source('servers/server-reconnector'),
    find: "['ENOENT', 'EBADMSG'].includes(failure.code)",
    replace: "['ENOENT'].includes(failure.code)",
    why: 'A restarted server of a version before proofs takes part never again.',
    tests: [unit('server-reconnector')],
  },
  {
    name: 'refused-connection-is-a-verdict',
    file: source('servers/resume-session'),
    find: "        parseUri(uri).provider === 'shm' &&\n",
    replace: '',
    why: 'Pages are lost while a tunnel or a firewall in front of their server refuses for some seconds.',
    tests: [unit('server-reconnector'), unit('resume-session')],
  },
  {
    name: 'server-given-up-too-soon',
    file: source('servers/server-reconnector'),
    find: 'performance.now() - refusedSince >= REFUSED_MS',
    replace: 'performance.now() - refusedSince > -REFUSED_MS',
    why: 'A server is given up at the first connection that is refused.',
    tests: [unit('server-reconnector')],
  },
  {
    name: 'left-claimed-not-settled',
    file: source('take-over/resync-replicas'),
    find: 'if (found === undefined || (await client.write(page, found))) return',
    replace: 'if (found === undefined || page < 1024) return',
    why: 'Pages of a WRITE that was never answered stay different on their replicas.',
    tests: [client('volume/resync-replicas')],
  },
  {
    name: 'vacated-while-written',
    file: source('slabs/thin-slabs'),
    find: '      await engine.synchronize()\n      const back',
    replace: '      void engine.synchronize()\n      const back',
    why: 'The memory of a slab that became empty goes back while operations may be under way there.',
    tests: [client('volume/given-back')],
  },
  {
    name: 'no-memory-while-servers-are-away',
    file: source('volume/server-membership'),
    find: 'if (this.#servers.some(({ away }) => away)) return true',
    replace: 'if (this.#servers.some(({ away }) => away)) return false',
    why: 'A first WRITE fails for lack of memory although a server that is away may have some.',
    tests: ['unit packages/nbd-client/test/volume/reconnect.test.ts'],
  },
  {
    name: 'empty-thin-volume-is-lost',
    file: source('volume/volume'),
    find: '      this.unmapped < this.engine.slabCount &&\n',
    replace: '',
    why: 'The process of a thin volume ends with its last server although nothing is written to it.',
    tests: [client('volume/reconnect')],
  },
  {
    name: 'place-at-a-server-that-failed',
    file: source('slabs/thin-slabs'),
    find: 'places.some(({ server }) => server.failure !== undefined)',
    replace: 'places.every(({ server }) => server.failure !== undefined)',
    why: 'A place is kept at a server that failed meanwhile, and whose index another one may have by then.',
    tests: [client('volume/thin')],
  },
  {
    name: 'memory-before-its-address',
    file: source('volume/open-volume'),
    find: `    options.prepare?.(engine)
    options.keep?.(servers)
    if (options.thin !== true) await placeAll(parts, slabSize)
`,
    replace: `    options.keep?.(servers)
    if (options.thin !== true) await placeAll(parts, slabSize)
    options.prepare?.(engine)
`,
    why: 'An address that is taken is told when all memory of the volume has been allocated.',
    tests: ['unit test/e2e/programs/bad-input.test.ts'],
  },
  {
    name: 'quota-told-as-memory',
    file: source('volume/server-fit'),
    find: 'if (quotas.length > 0)',
    replace: 'if (quotas.length > servers.length)',
    why: 'A client over the quota of its tenant is told that the server needs more memory.',
    tests: ['unit test/e2e/programs/bad-input.test.ts'],
  },
  {
    name: 'other-slab-size-ends-a-take-over',
    file: source('servers/resume-session'),
    find: "throw new SwapServerError(\n          'EPROTO',\n",
    replace: 'throw new ConfigurationError(\n',
    why: 'A server that says another size of its slabs than before ends the take-over of a volume that does not need it.',
    tests: [unit('resume-session')],
  },
  {
    name: 'refusing-server-comes-first',
    file: source('slabs/placement'),
    find: '(hesitates ? 0 : room)',
    replace: '(hesitates && room === 0 ? 0 : room)',
    why: 'A server that says that it has memory and refuses it keeps first WRITEs and replicas from the servers that have some.',
    tests: [client('volume/refusing-server')],
  },
  {
    name: 'refusing-server-is-not-asked-again',
    file: source('slabs/placement'),
    find: ' ?? choose(servers.map(({ room }) => room))',
    replace: '',
    why: 'First WRITEs fail for as long as the only server rests that had no memory for a moment.',
    tests: [client('volume/refusing-server')],
  },
]
