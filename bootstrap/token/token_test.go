// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const text = "abcdef.0123456789abcdef"

func holder(uid types.UID) Holder {
	return Holder{
		Config:     types.NamespacedName{Namespace: "tenant", Name: "blue-1"},
		Machine:    types.NamespacedName{Namespace: "tenant", Name: "blue-1"},
		Cluster:    types.NamespacedName{Namespace: "tenant", Name: "blue"},
		MachineUID: uid, Node: "blue-1", Groups: []string{Group},
	}
}

func TestEnsure(t *testing.T) {
	g := NewWithT(t)
	ctx, workload := t.Context(), fake.NewClientBuilder().Build()
	now := time.Now().Truncate(time.Second)
	in := now.Add
	stored := func() *corev1.Secret {
		secret := &corev1.Secret{}
		g.Expect(workload.Get(ctx, Key(text), secret)).To(Succeed())
		return secret
	}
	first := holder("machine-1").Secret(text, in(time.Hour))
	g.Expect(Ensure(ctx, workload, first, time.Minute, true)).To(BeTemporally("==", in(time.Hour)))
	g.Expect(stored().Annotations).To(HaveKeyWithValue(MachineUIDAnnotation, "machine-1"))

	// A token that is valid for long enough stays unchanged, whatever likely is.
	version := stored().ResourceVersion
	for _, likely := range []bool{true, false} {
		later := holder("machine-1").Secret(text, in(2*time.Hour))
		g.Expect(Ensure(ctx, workload, later, time.Minute, likely)).To(BeTemporally("==", in(time.Hour)))
	}
	g.Expect(stored().ResourceVersion).To(Equal(version))

	// "clusterctl move" gives the Machine another UID.
	moved := holder("machine-2").Secret(text, in(3*time.Hour))
	g.Expect(Ensure(ctx, workload, moved, time.Minute, false)).To(BeTemporally("==", in(3*time.Hour)))
	g.Expect(stored().Annotations).To(Equal(moved.Annotations))
	g.Expect(Expiration(stored())).To(BeTemporally("==", in(3*time.Hour)))

	// A token with the same ID but another secret, or of another config, stays unchanged.
	_, err := Ensure(ctx, workload, holder("machine-2").Secret("abcdef.fedcba9876543210", in(time.Hour)), time.Minute, false)
	g.Expect(err).To(MatchError(ErrTaken))
	other := holder("machine-2")
	other.Config.Name = "blue-2"
	_, err = Ensure(ctx, workload, other.Secret(text, in(time.Hour)), time.Minute, true)
	g.Expect(err).To(MatchError(ErrTaken))

	// A token that was cleaned up is created again.
	g.Expect(workload.Delete(ctx, stored())).To(Succeed())
	g.Expect(Extend(ctx, workload, moved)).To(Succeed())
	g.Expect(stored().Data).To(Equal(moved.Data))
}

func TestGroupsCanBeATokens(t *testing.T) {
	for _, group := range []string{Group, KubeadmGroup} {
		if err := bootstraputil.ValidateBootstrapGroupName(group); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryEndsWithTheCluster: the state of a deleted Cluster is dropped, and that of others is
// kept.
func TestMemoryEndsWithTheCluster(t *testing.T) {
	g := NewWithT(t)
	workload := fake.NewClientBuilder().WithObjects(holder("machine-1").Secret(text, time.Now())).Build()
	m := &Memory{}
	owner := Owner(types.NamespacedName{Namespace: "tenant", Name: "blue-1"}, "blue")
	for _, uid := range []types.UID{"cluster-1", "cluster-2"} {
		m.Put("config of "+uid, Known{Cluster: uid, Token: text})
		m.SetBound(uid, "binding")
		names, err := m.List(t.Context(), uid, workload, owner)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(names).To(Equal([]string{"bootstrap-token-abcdef"}))
	}
	m.ForgetCluster("cluster-1")
	_, ok := m.Get("config of cluster-1")
	g.Expect(ok).To(BeFalse())
	g.Expect(m.IsBound("cluster-1", "binding")).To(BeFalse())
	g.Expect(m.IsBound("cluster-2", "binding")).To(BeTrue())
	g.Expect(m.tokens).To(HaveLen(1))
	g.Expect(m.clusters).To(HaveLen(1))
}

// TestLongNamesAreNotKept: what no API server stores is not kept.
func TestLongNamesAreNotKept(t *testing.T) {
	g := NewWithT(t)
	secret := func(name, owner string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ConfigLabel: owner}}}
	}
	workload := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			long := strings.Repeat("a", 1<<20)
			list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{
				secret(long, "owner"), secret("bootstrap-token-abcdef", long), secret("bootstrap-token-abcdef", "owner"),
			}
			return nil
		},
	}).Build()
	m := &Memory{}
	g.Expect(m.List(t.Context(), "cluster-1", workload, "owner")).To(Equal([]string{"bootstrap-token-abcdef"}))
	g.Expect(m.clusters["cluster-1"].byOwner).To(HaveLen(1))
}

func TestMemoryAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		lists := 0
		fails := false
		workload := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
				if lists++; fails {
					return errors.New("away")
				}
				return c.List(ctx, list, o...)
			},
		}).Build()
		m := &Memory{}
		m.SetBound("cluster-1", "binding")
		for range 2 {
			_, err := m.List(t.Context(), "cluster-1", workload, "")
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(lists).To(Equal(1), "one listing serves all machines of a cluster")
		time.Sleep(listingAge + time.Second)
		fails = true
		_, err := m.List(t.Context(), "cluster-1", workload, "")
		g.Expect(err).To(HaveOccurred(), "an old listing is not used")
		g.Expect(m.IsBound("cluster-1", "binding")).To(BeTrue())
		time.Sleep(bindingAge)
		g.Expect(m.IsBound("cluster-1", "binding")).To(BeFalse())
	})
}
