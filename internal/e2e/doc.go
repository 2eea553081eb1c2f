// Package e2e drives the real clusterd executable from outside, in lab nodes (scripts/lab). The scenarios are tests with
// the build tag e2e; scripts/test runs them, or
//
//	go test -tags e2e ./internal/e2e -run TestCluster/Probes
//
// for one. They need root and, as Debian packages, iproute2, util-linux, nftables (or iptables), busybox-static and, for
// the guest with cgroup v2, user-mode-linux and kmod.
//
// The executable is bin/clusterd of this tree, or $CLUSTERD_BIN. CLUSTERD_E2E_KEEP=failure leaves the node of a failed
// test running, CLUSTERD_E2E_KEEP=always every node; the last lines say how to look into it. The whole server log of a
// failed test is copied to bin/e2e-NODE.log.
package e2e
