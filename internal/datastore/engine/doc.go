// Package engine is a revision store in one SQLite file: the keys, revisions, watches and compaction that an API server
// expects of etcd, by way of kine's server.Backend.
//
// What it promises:
//   - A write is answered, and seen by readers and watchers, only after its transaction is on disk. Writes that queue up
//     while one commits go into the next transaction together.
//   - Revisions are dense and strictly increasing. A read at any revision that is not compacted sees that revision.
//   - A watcher gets every event of its range once and in order. One that is slow costs a bounded amount of memory: it
//     reads what it missed from the log.
//   - Compaction works in slices of a few milliseconds between writes, in the order in which revisions became garbage, so
//     that its cost is what there is to remove. The file gives pages back as it goes.
//   - Nothing wakes up while nothing happens.
//
// The file has one append-only table, ordered by revision and without further indexes. The keys are indexed in memory,
// about 150 bytes for each, which is built by one scan at the start; values stay on disk behind a small cache.
//
// The file is locked as long as it is open. Another process that held a read transaction could keep the write-ahead log
// from ever being folded back; with the lock it cannot, and the log's index needs no shared memory either.
package engine
