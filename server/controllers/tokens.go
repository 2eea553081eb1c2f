package controllers

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// tokens fills the secrets of type service-account-token.
type tokens struct {
	c       *serviceaccountcontroller.TokensController
	workers int
}

// newTokens makes the controller that upstream's descriptor makes with an unexported argument.
func newTokens(ctx context.Context, cc app.ControllerContext, root builder) (app.Controller, error) {
	conf := cc.ComponentConfig.SAController
	key, err := keyutil.PrivateKeyFromFile(conf.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the service account key %s: %w", conf.ServiceAccountKeyFile, err)
	}
	ca, err := os.ReadFile(conf.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("read the root CA: %w", err)
	}
	gen, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("make the token generator: %w", err)
	}
	client, err := root.Client("tokens-controller")
	if err != nil {
		return nil, err
	}
	core := cc.InformerFactory.Core().V1()
	c, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: gen, RootCA: ca})
	if err != nil {
		return nil, fmt.Errorf("make the token controller: %w", err)
	}
	return tokens{c, int(conf.ConcurrentSATokenSyncs)}, nil
}

func (t tokens) Name() string            { return names.ServiceAccountTokenController }
func (t tokens) Run(ctx context.Context) { t.c.Run(ctx, t.workers) }
