const source = (name) => `packages/nbd-client/native/engine/${name}`

export const mutations = [
  {
    name: 'backup-is-not-waited-for',
    file: source('rdma_queue_backup.cc'),
    find: 'if (acknowledge_ != Acknowledge::backup || !backup_->keep_offered(operation)) return;',
    replace: 'if (acknowledge_ != Acknowledge::backup || backup_->keep_offered(operation)) return;',
    why: 'With --ack backup a WRITE is answered before it is in the file.',
    tests: ['native asan engine_backup', 'unit test/e2e/backup.test.ts'],
  },
  {
    name: 'backup-error-counts-as-kept',
    file: source('backup_port.cc'),
    find: '    ticket.good &= done.succeeded;\n',
    replace: '',
    why: 'A WRITE counts as kept in the backup although the file could not be written.',
    tests: ['native asan engine_backup_aimed'],
  },
  {
    name: 'overtaken-page-counts-as-held',
    file: source('backup_map.cc'),
    find: 'return kept && state == BackupState::queued ? BackupState::held : BackupState::stale;',
    replace: 'return kept && state != BackupState::stale ? BackupState::held : BackupState::stale;',
    why: 'The backup is believed to have a page of which a newer version did not fit into its queue.',
    tests: ['native asan engine_backup', 'native tsan engine_backup'],
  },
  {
    name: 'map-of-another-backup',
    file: source('backup_map.cc'),
    find: 'if (fresh || empty || header->about != about) {',
    replace: 'if (fresh || empty) {',
    why: 'What one file has is believed to be in another one.',
    tests: ['native asan engine_backup_aimed'],
  },
  {
    name: 'backup-sleeps-without-a-look',
    file: source('backup.cc'),
    find: '  if (nothing_to_do()) {\n    pollfd',
    replace: '  if (stop_at_.load() == 0) {\n    pollfd',
    why: 'What was queued just before the thread of the backup said that it sleeps waits for the next.',
    tests: ['native asan engine_backup_aimed'],
  },
  {
    name: 'backup-short-write',
    file: source('backup_file.cc'),
    find: '    offset += whole;\n    for (',
    replace: '    for (',
    why: 'After a write that stopped short the rest goes over what it has written.',
    tests: ['native asan engine_backup_aimed'],
  },
  {
    name: 'catch-up-passes-over-a-claimed-page',
    file: source('backup_catch_up.cc'),
    find: '    again_ |= map_.missing(word_, volume_.pages(), PageState::claimed) != 0;\n',
    replace: '',
    why: 'A page that a WRITE holds while the catch-up passes over it is never brought to the backup.',
    tests: ['native asan engine_backup_aimed'],
  },
  {
    name: 'vacated-under-a-claim',
    file: source('volume_thin.cc'),
    find: `  if (!pages_.all_unset(first, count)) {
    record.reopen();
    return EBUSY;
  }
`,
    replace: '',
    why: 'A slab loses its place although a WRITE has just claimed a page of it.',
    tests: ['native asan engine_litmus'],
  },
  {
    name: 'claim-does-not-hold-the-slab',
    file: source('volume.h'),
    find: 'return !thin_ || phase(offset) == SlabPhase::mapped || keep(offset); }',
    replace: 'return !thin_ || phase(offset) != SlabPhase::mapping || keep(offset); }',
    why: 'A WRITE goes to a slab whose place is being taken.',
    tests: ['native asan engine_aimed'],
  },
  {
    name: 'spare-place-of-failed-server',
    file: source('spare_places.h'),
    find: 'good = good && !failed(slot.place_.replicas[i].server);',
    replace: 'good = good && (i > 0 || !failed(slot.place_.replicas[i].server));',
    why: 'A slab is placed at a server that has failed, and has a replica less from the start.',
    tests: ['native asan engine_aimed'],
  },
]
