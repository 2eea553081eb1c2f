package migrate

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/clusterd/clusterd/internal/datastore/engine"
)

// digest sums up a set of keys, whatever the order in which they come: their hashes are added. Sources of keys give them
// in orders of their own, which no database needs to sort for this.
type digest struct {
	keys, bytes, encrypted int64
	sum                    [4]uint64
}

// encryption is how values begin that an API server has encrypted.
var encryption = []byte("k8s:enc:")

// add counts a record. Revisions and the time that leases have left are no part of the sum.
func (d *digest) add(r engine.Record) error {
	if own(r.Key) {
		return nil
	}
	d.keys++
	d.bytes += int64(len(r.Key) + len(r.Value))
	if bytes.HasPrefix(r.Value, encryption) {
		d.encrypted++
	}
	h := sha256.New()
	var head [9]byte
	binary.BigEndian.PutUint64(head[:], uint64(len(r.Key)))
	if r.Lease > 0 {
		head[8] = 1
	}
	h.Write(head[:])
	h.Write([]byte(r.Key))
	h.Write(r.Value)
	hash, carry := h.Sum(nil), uint64(0)
	for i := range d.sum {
		d.sum[i], carry = bits.Add64(d.sum[i], binary.LittleEndian.Uint64(hash[8*i:]), carry)
	}
	return nil
}

// compare is an error when the digest is of another set.
func (d *digest) compare(want *digest) error {
	switch {
	case d.keys != want.keys:
		return fmt.Errorf("compare: %d keys arrived of %d", d.keys, want.keys)
	case d.sum != want.sum:
		return fmt.Errorf("compare: what arrived is not what was sent, in %d keys", d.keys)
	}
	return nil
}
