// Package external is a datastore in a database elsewhere (PostgreSQL, MySQL, NATS), by kine's drivers, or in etcd.
//
// What it promises over the drivers:
//   - A database that is not there yet is waited for, and one that goes away is found again. Either is said in one line,
//     and another one tells that it is back. Credentials that it refuses end the start.
//   - A write that is acknowledged was made: the drivers take a creation that failed for a success when the key can be read
//     again but is not there.
//   - A list and a watch from its revision on miss nothing. Databases hand out revisions before they commit, so that a list
//     can lack a revision lower than its own.
//   - One stream of events for all watches, which are given those of their range alone, each once and in order.
//   - Nothing in it ends the process: where the drivers would, only the compaction at hand ends.
//
// Several servers can use the same database at the same time.
package external
