// Command baseline is the yardstick for clusterd's figures: the upstream Kubernetes components at the version in go.mod,
// each as a process of its own, with stock kine on SQLite, stock containerd, runc and CNI plugins, as a careful
// administrator would run them on one machine.
//
//	baseline up DIR [IMAGES.tar...]
//
// starts everything, imports the image archives, prints the seconds to each stage and stays in the foreground. An
// interrupt stops the processes and leaves the pods, so that a second start on the same DIR finds them again. The admin's
// kubeconfig is DIR/admin.yaml; every process logs to DIR/NAME.log.
//
//	baseline join DIR SERVER AUTHORITIES [IMAGES.tar...]
//
// makes the machine a node of a cluster whose API server is at the IP address SERVER, port 6443: containerd, kubelet and
// kube-proxy alone. AUTHORITIES is a directory with the cluster's server-ca.crt, client-ca.crt and client-ca.key.
//
// Both take the machine's ports and /etc, so run it in a lab node.
//
// The program expects containerd, its shim, ctr and runc beside itself and the CNI plugins in ../cni, which
// is where the build script puts them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: baseline up DIR [IMAGES.tar...]")
		os.Exit(2)
	}
	// The components are this file under another first argument, which their commands must not see.
	role := os.Args[1]
	os.Args = append([]string{role}, os.Args[2:]...)
	if err := run(role, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
}

func run(role string, args []string) error {
	switch role {
	case "up":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return up(ctx, args[0], args[1:])
	case "join":
		if len(args) < 3 {
			return fmt.Errorf("join needs a directory, a server and a directory of authorities")
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return join(ctx, args[0], args[1], args[2], args[3:])
	case "kine":
		return kine(args[0], args[1], args[2])
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(kcm.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	}
	return fmt.Errorf("unknown role %q", role)
}
