package upstream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	. "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/clusterd/clusterd/internal/upstream"
)

// upstreamTest is one of upstream's tests of its etcd3 store, and the feature gates that it has there.
type upstreamTest struct {
	name string
	run  func(context.Context, *testing.T, *etcd3Store)
	gate map[featuregate.Feature]bool
}

// plain are the tests that need the store alone.
func plain(name string, run func(context.Context, *testing.T, storage.Interface)) upstreamTest {
	return upstreamTest{name: name, run: func(ctx context.Context, t *testing.T, s *etcd3Store) { run(ctx, t, s) }}
}

func transformed(name string, run func(context.Context, *testing.T, InterfaceWithPrefixTransformer)) upstreamTest {
	return upstreamTest{name: name, run: func(ctx context.Context, t *testing.T, s *etcd3Store) { run(ctx, t, s) }}
}

// upstreamTests are what upstream runs on etcd, but for the tests of its handling of objects that cannot be decoded
// (RunTestDelete...TransformOrDecodeError, RunTestGetListWith...ErrorAggregation, RunTestWatchWithUnsafeDelete), which need
// errors that only its package can make and ask nothing of the store beneath.
var upstreamTests = []upstreamTest{
	{name: "Create", run: func(ctx context.Context, t *testing.T, s *etcd3Store) { RunTestCreate(ctx, t, s, s.validate) }},
	plain("CreateWithTTL", RunTestCreateWithTTL),
	plain("CreateWithKeyExist", RunTestCreateWithKeyExist),
	plain("Get", RunTestGet),
	plain("UnconditionalDelete", RunTestUnconditionalDelete),
	plain("ConditionalDelete", RunTestConditionalDelete),
	plain("DeleteWithSuggestion", RunTestDeleteWithSuggestion),
	plain("DeleteWithSuggestionAndConflict", RunTestDeleteWithSuggestionAndConflict),
	plain("DeleteWithSuggestionOfDeletedObject", RunTestDeleteWithSuggestionOfDeletedObject),
	plain("ValidateDeletionWithSuggestion", RunTestValidateDeletionWithSuggestion),
	plain("ValidateDeletionWithOnlySuggestionValid", RunTestValidateDeletionWithOnlySuggestionValid),
	plain("DeleteWithConflict", RunTestDeleteWithConflict),
	plain("PreconditionalDeleteWithSuggestion", RunTestPreconditionalDeleteWithSuggestion),
	plain("PreconditionalDeleteWithOnlySuggestionPass", RunTestPreconditionalDeleteWithOnlySuggestionPass),
	plain("ListPaging", RunTestListPaging),
	{name: "GetListNonRecursive", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestGetListNonRecursive(ctx, t, s.increase, s)
	}},
	plain("GetListRecursivePrefix", RunTestGetListRecursivePrefix),
	plain("KeySchema", RunTestKeySchema),
	{name: "GuaranteedUpdate", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestGuaranteedUpdate(ctx, t, s, s.validate)
	}},
	plain("GuaranteedUpdateWithTTL", RunTestGuaranteedUpdateWithTTL),
	transformed("GuaranteedUpdateChecksStoredData", RunTestGuaranteedUpdateChecksStoredData),
	plain("GuaranteedUpdateWithConflict", RunTestGuaranteedUpdateWithConflict),
	plain("GuaranteedUpdateWithSuggestionAndConflict", RunTestGuaranteedUpdateWithSuggestionAndConflict),
	transformed("TransformationFailure", RunTestTransformationFailure),
	{name: "List", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestList(ctx, t, s, s.compact, false, s.lists)
	}},
	{name: "ConsistentList", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestConsistentList(ctx, t, s, s.increase, false, true, false)
	}},
	{name: "CompactRevision", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestCompactRevision(ctx, t, s, s.increase, s.compact)
	}, gate: map[featuregate.Feature]bool{features.ListFromCacheSnapshot: true}},
	{name: "ListContinuation", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestListContinuation(ctx, t, s, anyCalls)
	}},
	{name: "ListPaginationRareObject", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestListPaginationRareObject(ctx, t, s, anyCalls)
	}},
	{name: "ListContinuationWithFilter", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestListContinuationWithFilter(ctx, t, s, anyCalls)
	}},
	plain("NamespaceScopedList", RunTestNamespaceScopedList),
	{name: "ListInconsistentContinuation", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestListInconsistentContinuation(ctx, t, s, s.compact)
	}},
	transformed("ListResourceVersionMatch", RunTestListResourceVersionMatch),
	{name: "Stats", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestStats(ctx, t, s, s.codec, s.transformer, false)
	}},
	{name: "StatsOfSizes", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		if err := s.estimate(); err != nil {
			t.Fatal(err)
		}
		RunTestStats(ctx, t, s, s.codec, s.transformer, true)
	}},
	plain("Watch", RunTestWatch),
	plain("ClusterScopedWatch", RunTestClusterScopedWatch),
	plain("NamespaceScopedWatch", RunTestNamespaceScopedWatch),
	plain("DeleteTriggerWatch", RunTestDeleteTriggerWatch),
	{name: "WatchFromZero", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestWatchFromZero(ctx, t, s, s.compact)
	}},
	plain("WatchFromNonZero", RunTestWatchFromNonZero),
	plain("DelayedWatchDelivery", RunTestDelayedWatchDelivery),
	transformed("WatchError", RunTestWatchError),
	plain("WatchContextCancel", RunTestWatchContextCancel),
	plain("WatcherTimeout", RunTestWatcherTimeout),
	plain("WatchDeleteEventObjectHaveLatestRV", RunTestWatchDeleteEventObjectHaveLatestRV),
	plain("WatchInitializationSignal", RunTestWatchInitializationSignal),
	{name: "ProgressNotify", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunOptionalTestProgressNotify(ctx, t, s, s.increase)
	}},
	{name: "WatchDispatchBookmarkEvents", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunTestWatchDispatchBookmarkEvents(ctx, t, s, false)
	}},
	plain("SendInitialEventsBackwardCompatibility", RunSendInitialEventsBackwardCompatibility),
	plain("WatchSemantics", RunWatchSemantics),
	{name: "WatchSemanticsWithConcurrentDecode", run: func(ctx context.Context, t *testing.T, s *etcd3Store) {
		RunWatchSemantics(ctx, t, s)
	}, gate: map[featuregate.Feature]bool{features.ConcurrentWatchObjectDecode: true}},
	plain("WatchSemanticInitialEventsExtended", RunWatchSemanticInitialEventsExtended),
	plain("WatchListMatchSingle", RunWatchListMatchSingle),
	transformed("WatchErrorIsBlockingFurtherEvents", RunWatchErrorIsBlockingFurtherEvents),
}

// anyCalls does not count requests to the store, which would be a test of upstream.
func anyCalls(*testing.T, uint64, uint64) {}

// TestUpstreamEtcd3 runs upstream's tests of its store of objects on ours, the way an API server here reaches it.
func TestUpstreamEtcd3(t *testing.T) {
	upstream.Store("http://store-of-etcd3-tests", func() (*kubernetes.Client, error) { return nil, errors.ErrUnsupported })
	runUpstreamTests(t, direct)
}

// TestUpstreamEtcd3ByGRPC runs them the way that every etcd client does, which also covers lists as streams.
func TestUpstreamEtcd3ByGRPC(t *testing.T) {
	original := feature.DefaultFeatureSupportChecker
	feature.DefaultFeatureSupportChecker = feature.NewDefaultFeatureSupportChecker()
	t.Cleanup(func() { feature.DefaultFeatureSupportChecker = original })
	runUpstreamTests(t, byGRPC)
}

func runUpstreamTests(t *testing.T, connect connection) {
	for _, u := range upstreamTests {
		t.Run(u.name, func(t *testing.T) {
			for gate, on := range u.gate {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
			}
			u.run(t.Context(), t, newEtcd3Store(t, connect))
		})
	}
}

// validate looks at a stored object as it is in the datastore.
func (s *etcd3Store) validate(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	r, err := s.client.KV.Get(ctx, key)
	if err != nil || len(r.Kvs) != 1 {
		t.Fatalf("get %s: %v, %v", key, r, err)
	}
	o, err := runtime.Decode(s.codec, r.Kvs[0].Value[len(storedPrefix):])
	if err != nil {
		t.Fatalf("decode %q: %v", r.Kvs[0].Value, err)
	}
	if pod := o.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("stored with revision %q and link %q", pod.ResourceVersion, pod.SelfLink)
	}
}

// increase makes a revision that has nothing to do with the tested objects.
func (s *etcd3Store) increase(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	now, err := s.client.Kubernetes.Get(ctx, "increase", kubernetes.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revision := int64(0)
	if now.KV != nil {
		revision = now.KV.ModRevision
	}
	r, err := s.client.Kubernetes.OptimisticPut(ctx, "increase", []byte("x"), revision, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || !r.Succeeded {
		t.Fatalf("write another key: %v, %v", r, err)
	}
	return r.Revision
}

// compact does what an API server's compactor does, and waits until the store has noticed.
func (s *etcd3Store) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	revision, err := storage.APIObjectVersioner{}.ParseResourceVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	for compacted := int64(0); compacted != int64(revision); {
		// Without the number of the last turn, it only learns that.
		if s.turn, _, compacted, err = etcd3.Compact(ctx, s.client.Client, s.turn, int64(revision)); err != nil {
			t.Fatal(err)
		}
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot) {
		return
	}
	for end := time.Now().Add(time.Minute); s.Interface.CompactRevision() != int64(revision); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the store thinks that %d is compacted, want %d", s.Interface.CompactRevision(), revision)
		}
	}
}
