// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// lists serves lists in pages, as an API server does and the fake client does not, and records
// them.
type lists struct {
	// only is the only namespace that may be listed. If empty, all.
	only string

	mu sync.Mutex
	// asked counts the lists by kind and namespace; the pages of one list count as one. longest is
	// the longest response.
	asked   map[string]int
	longest int
}

func (l *lists) intercept() interceptor.Funcs { return interceptor.Funcs{List: l.list} }

func (l *lists) list(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	if l.only != "" && o.Namespace != l.only {
		return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	}
	limit, next := int(o.Limit), o.Continue
	o.Limit, o.Continue = 0, ""
	if err := c.List(ctx, list, o); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	begin, _ := strconv.Atoi(next)
	end := len(items)
	if limit > 0 && begin+limit < end {
		end = begin + limit
		list.SetContinue(strconv.Itoa(end))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, end-begin)
	if next == "" {
		if l.asked == nil {
			l.asked = map[string]int{}
		}
		l.asked[fmt.Sprintf("%T %s", list, o.Namespace)]++
	}
	return meta.SetList(list, items[begin:end])
}

// TestSilentInPages: after an outage, the controller reads the Nodes of many clusters at once. A
// cluster of any size takes the memory of one page, and no page is left out.
func TestSilentInPages(t *testing.T) {
	t.Parallel()
	const nodes = 3*pageSize - 7
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blue"}}
	var management, workload []client.Object
	var want []string
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("m", i), Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"},
		}}
		machine.Status.NodeRef.Name = node.Name
		machine.Status.Conditions = []metav1.Condition{
			{Type: clusterv1.MachineNodeReadyCondition, Status: metav1.ConditionTrue},
			{Type: clusterv1.MachineNodeHealthyCondition, Status: metav1.ConditionTrue},
		}
		switch i % 100 {
		case 1:
			node.Status.Conditions[0].Status = corev1.ConditionUnknown
			want = append(want, machine.Name)
		case 2:
			machine.Status.NodeRef.Name = "gone"
			want = append(want, machine.Name)
		}
		management, workload = append(management, machine), append(workload, node)
	}
	served := &lists{}
	live := fake.NewClientBuilder().WithObjects(workload...).WithInterceptorFuncs(served.intercept()).Build()
	r := &ReachabilityReconciler{
		Client:       fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(management...).Build(),
		ClusterCache: clustercache.NewFakeClusterCache(live, client.ObjectKeyFromObject(cluster)),
		Timeout:      grace,
	}
	got, err := r.nodesNotReporting(t.Context(), cluster)
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("silent are %v, want %v: %v", got, want, err)
	}
	if served.longest > pageSize {
		t.Errorf("one answer had %d Nodes, want %d at most", served.longest, pageSize)
	}
}
