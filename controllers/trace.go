// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/predicates"
	"github.com/drover-io/drover/internal/record"
)

const (
	// startupAge is how long after its end a machine's way to a ready Node counts: it is traced
	// again after a restart, and is part of its pool's budget. A Node that becomes ready again later
	// is not a new one.
	startupAge = time.Hour
	// traceWait is how long a trace waits for what a manager that has just started has not read yet.
	traceWait = 2 * time.Minute
	// traceRetry is how often it looks.
	traceRetry = 5 * time.Second
)

// TraceReconciler sends a trace of each machine when its Node is ready, or when the machine is
// deleted before Cluster API has seen a Node. A trace is made from what is recorded, and its IDs from
// the DroverMachine's UID: sent again, it is the same. It writes no object.
type TraceReconciler struct {
	Client   client.Client
	Startups Startups
	// Upload sends a trace to a collector.
	Upload           func(context.Context, []*tracepb.ResourceSpans) error
	WatchFilterValue string

	began time.Time
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=drovermachines,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *TraceReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	r.began = time.Now()
	return builder.ControllerManagedBy(mgr).
		Named("trace").
		For(&clusterv1.Machine{}, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return isStartOver(e.Object.(*clusterv1.Machine)) },
			UpdateFunc: func(e event.UpdateEvent) bool {
				return !isStartOver(e.ObjectOld.(*clusterv1.Machine)) && isStartOver(e.ObjectNew.(*clusterv1.Machine))
			},
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WithOptions(options).
		Complete(conflict.Retried(r))
}

// isStartOver reports whether the machine's Node is ready, or never will be.
func isStartOver(owner *clusterv1.Machine) bool {
	return !readySince(owner).IsZero() || !owner.DeletionTimestamp.IsZero() && !owner.Status.NodeRef.IsDefined()
}

// Reconcile sends the trace of one machine.
func (r *TraceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	owner, m := &clusterv1.Machine{}, &infrav1.DroverMachine{}
	if err := r.Client.Get(ctx, req.NamespacedName, owner); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !isStartOver(owner) || time.Since(startEnd(owner)) > startupAge ||
		owner.Spec.InfrastructureRef.GroupKind() != infrav1.DroverMachineKind {
		return reconcile.Result{}, nil
	}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: owner.Namespace, Name: owner.Spec.InfrastructureRef.Name}, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !predicates.Watched(m, r.WatchFilterValue) || !isCreatedHere(m) {
		return reconcile.Result{}, nil
	}
	s, err := r.Startups.read(ctx, owner, m, certificates{})
	switch {
	case err != nil && r.mayWait(owner):
		return reconcile.Result{RequeueAfter: traceRetry}, nil
	case !s.ended[stepRegister].IsZero() && time.Since(s.ended[stepRegister]) > startupAge: // it is ready again
		return reconcile.Result{}, nil
	}
	trace, err := traceOf(owner, m, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.Upload(ctx, []*tracepb.ResourceSpans{trace}); err != nil {
		return reconcile.Result{}, fmt.Errorf("sending the trace: %w", err)
	}
	return reconcile.Result{}, nil
}

// mayWait reports whether a trace may wait for what is not read yet. One of a machine that is being
// deleted waits only while the manager has just started, because its objects go.
func (r *TraceReconciler) mayWait(owner *clusterv1.Machine) bool {
	ready := readySince(owner)
	return time.Since(r.began) < traceWait || !ready.IsZero() && time.Since(ready) < traceWait
}

// startEnd returns when the machine's Node became ready, or the machine was deleted without one.
func startEnd(owner *clusterv1.Machine) time.Time {
	if ready := readySince(owner); !ready.IsZero() || owner.DeletionTimestamp.IsZero() {
		return ready
	}
	return owner.DeletionTimestamp.UTC()
}

// traceOf returns the trace of a machine whose start is over. Its attributes hold names, and nothing
// that a guest or a cloud says in a sentence.
func traceOf(owner *clusterv1.Machine, m *infrav1.DroverMachine, s startup) (*tracepb.ResourceSpans, error) {
	trace, err := uuid.Parse(string(m.UID))
	if err != nil {
		return nil, fmt.Errorf("making a trace ID of the DroverMachine's UID: %w", err)
	}
	end := startEnd(owner)
	root := &tracepb.Span{
		TraceId: trace[:], SpanId: spanID(trace, "machine"), Name: "machine", Kind: tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: uint64(s.began.UnixNano()), EndTimeUnixNano: uint64(later(s.began, end).UnixNano()),
		Attributes: attributes(
			record.Cluster, record.Key(m.Namespace, owner.Spec.ClusterName),
			record.Machine, client.ObjectKeyFromObject(m).String(),
			record.Account, record.Key(m.Namespace, m.Spec.AccountRef.Name),
			record.Pool, record.Key(m.Namespace, poolLabel(m)),
			record.CloudName, m.Status.Cloud, "instanceType", instanceType(&m.Spec.DroverMachineFields),
			"zone", m.Status.FailureDomain, record.ProviderID, m.Spec.ProviderID, "node", owner.Status.NodeRef.Name),
	}
	spans := []*tracepb.Span{root}
	for _, step := range s.steps(end) {
		spans = append(spans, &tracepb.Span{
			TraceId: trace[:], SpanId: spanID(trace, step.name), ParentSpanId: root.SpanId, Name: step.name, Kind: tracepb.Span_SPAN_KIND_INTERNAL,
			StartTimeUnixNano: uint64(step.began.UnixNano()), EndTimeUnixNano: uint64(step.ended.UnixNano()),
		})
	}
	if s.ended[stepReady].IsZero() {
		failed := &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: failureReason(m)}
		root.Status, spans[len(spans)-1].Status = failed, failed
	}
	return &tracepb.ResourceSpans{
		Resource:   &resourcepb.Resource{Attributes: attributes("service.name", "drover")},
		ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: "drover"}, Spans: spans}},
	}, nil
}

// failureReason returns the reason of the condition that says how far a machine came.
func failureReason(m *infrav1.DroverMachine) string {
	if !isProvisioned(m) {
		return readyReason(m)
	}
	return conditions.GetReason(m, infrav1.MachineNodeJoinedCondition)
}

// spanID returns the same ID for the same span of a trace.
func spanID(trace uuid.UUID, name string) []byte {
	sum := sha256.Sum256(append(trace[:], name...))
	return sum[:8]
}

// attributes returns those of the pairs of name and value whose value is not empty.
func attributes(pairs ...string) (all []*commonpb.KeyValue) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, &commonpb.KeyValue{Key: pairs[i],
				Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: pairs[i+1]}}})
		}
	}
	return all
}
