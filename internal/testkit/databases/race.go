//go:build race

package databases

// Raced is whether the race detector looks on. kine's driver for NATS reads versions of keys while it changes them; what it
// then writes has a condition that the server checks.
const Raced = true
