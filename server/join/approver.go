package join

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// approver decides about the requests of nodes, which upstream's controller then signs.
type approver struct {
	client     clientset.Interface
	identities identities
	taken      func(address string) bool
	log        *slog.Logger
}

func newApprover(client clientset.Interface, taken func(string) bool, log *slog.Logger) *approver {
	return &approver{client: client, identities: identities{client: client, now: time.Now}, taken: taken, log: log}
}

// run decides about each request that is there or comes, until ctx ends.
func (a *approver) run(ctx context.Context, ready func()) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(a.client.CertificatesV1().RESTClient(), "certificatesigningrequests", "", fields.Everything()),
		ObjectType:    &certificates.CertificateSigningRequest{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) {
				if csr, ok := o.(*certificates.CertificateSigningRequest); ok && ours(csr) {
					queue.Add(csr.Name)
				}
			},
		},
	})
	go informer.RunWithContext(ctx)
	context.AfterFunc(ctx, queue.ShutDown)
	ready()
	for {
		name, end := queue.Get()
		if end {
			return nil
		}
		if o, there, _ := store.GetByKey(name); there && ours(o.(*certificates.CertificateSigningRequest)) { // else another server was faster
			a.work(ctx, queue, o.(*certificates.CertificateSigningRequest))
		}
		queue.Done(name)
	}
}

func (a *approver) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], csr *certificates.CertificateSigningRequest) {
	err := a.decide(ctx, csr.DeepCopy())
	if err == nil || apierrors.IsNotFound(err) {
		queue.Forget(csr.Name)
		return
	}
	a.log.Debug("request not decided yet", "request", csr.Name, "error", err)
	queue.AddRateLimited(csr.Name)
}

func (a *approver) decide(ctx context.Context, csr *certificates.CertificateSigningRequest) error {
	refusal, err := a.judge(ctx, csr)
	if err != nil {
		return err
	}
	c := certificates.CertificateSigningRequestCondition{
		Type: certificates.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Node", Message: "a node asks for what is its own",
	}
	if refusal != "" {
		c.Type, c.Reason, c.Message = certificates.CertificateDenied, "NotANode", refusal
		a.log.Warn("node refused", "user", csr.Spec.Username, "signer", csr.Spec.SignerName, "reason", refusal)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, c)
	if _, err := a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("decide about request %s: %w", csr.Name, err)
	}
	if c.Type == certificates.CertificateApproved && csr.Spec.SignerName == certificates.KubeAPIServerClientKubeletSignerName {
		a.log.Info("node let in", "request", csr.Name, "by", csr.Spec.Username)
	}
	return nil
}

// judge says in a sentence why a request is refused, or nothing. An error is one of the API; asking again may help.
func (a *approver) judge(ctx context.Context, csr *certificates.CertificateSigningRequest) (refusal string, _ error) {
	r, err := parse(csr)
	if err != nil {
		return err.Error(), nil
	}
	switch csr.Spec.SignerName {
	case certificates.KubeletServingSignerName:
		err = r.serving(a.taken)
	case certificates.KubeAPIServerClientSignerName:
		err = r.service()
	default:
		node, wrong := r.wanted()
		if wrong == nil {
			return a.identities.claim(ctx, node, r)
		}
		err = wrong
	}
	if err != nil {
		return err.Error(), nil
	}
	return "", nil
}
