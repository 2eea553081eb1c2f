//go:build !race

package databases

// Raced is whether the race detector looks on.
const Raced = false
