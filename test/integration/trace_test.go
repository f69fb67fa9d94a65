// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// startCollector starts the OpenTelemetry collector's receiver of OTLP, which keeps what it gets. It
// returns its URL.
func startCollector(ctx context.Context) (traces *consumertest.TracesSink, url string, stop func(), err error) {
	ports, err := playground.FreePorts(1)
	if err != nil {
		return nil, "", nil, err
	}
	address := fmt.Sprint("127.0.0.1:", ports[0])
	factory, traces := otlpreceiver.NewFactory(), &consumertest.TracesSink{}
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.GRPC.GetOrInsertDefault().NetAddr.Endpoint = address
	receiver, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), config, traces)
	if err != nil {
		return nil, "", nil, err
	}
	if err := receiver.Start(ctx, componenttest.NewNopHost()); err != nil {
		return nil, "", nil, err
	}
	return traces, "http://" + address, func() { _ = receiver.Shutdown(context.WithoutCancel(ctx)) }, nil
}

// received returns what the collector has got about a machine, one for each time that it was sent.
func received(s *tenant, m *infrav1.DroverMachine) (all [][]ptrace.Span) {
	s.t.Helper()
	for _, traces := range env.traces.AllTraces() {
		for _, resource := range traces.ResourceSpans().All() {
			service, _ := resource.Resource().Attributes().Get("service.name")
			s.Expect(service.Str()).To(Equal("drover"))
			var spans []ptrace.Span
			for _, scope := range resource.ScopeSpans().All() {
				for _, span := range scope.Spans().All() {
					if span.TraceID().String() == strings.ReplaceAll(string(m.UID), "-", "") {
						spans = append(spans, span)
					}
				}
			}
			if len(spans) > 0 {
				all = append(all, spans)
			}
		}
	}
	return all
}

// machineOf returns the only DroverMachine of a pool.
func machineOf(s *tenant, pool scenario.Pool, is func(*infrav1.DroverMachine) bool) *infrav1.DroverMachine {
	s.t.Helper()
	list := &infrav1.DroverMachineList{}
	s.Eventually(func() bool {
		s.Expect(env.client.List(s.ctx, list, client.InNamespace(s.Namespace),
			client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: pool.Name})).To(Succeed())
		return len(list.Items) == 1 && is(&list.Items[0])
	}).Should(BeTrue())
	return &list.Items[0]
}

// restart replaces the manager.
func restart(s *tenant) {
	s.t.Helper()
	env.drover.Kill()
	s.Expect(searchLog()).To(Succeed())
	var err error
	env.drover, err = env.startDrover(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
}

// TestTrace: a machine that becomes a ready Node has one trace whose steps follow each other without
// a gap, although the manager was killed midway. The next manager sends the same again.
func TestTrace(t *testing.T) {
	s := newTenant(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "workers", Replicas: 1, Machine: infrav1.SimulatedMachine{InstanceType: "small"}}
	s.create(s.credentials(), s.kubeconfigSecret(s.Kubeconfig), s.Account(), s.DroverCluster(), s.ControlPlane(), s.Cluster())
	s.create(pool.Objects()...)
	recorded := func(m *infrav1.DroverMachine) bool { return m.Spec.ProviderID != "" }
	m := machineOf(s, pool, recorded)
	restart(s)
	s.Eventually(func() [][]ptrace.Span { return received(s, m) }).Should(HaveLen(1))
	s.Expect(env.client.Get(s.ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())

	first := received(s, m)[0]
	root := first[0]
	s.Expect(root.ParentSpanID().IsEmpty()).To(BeTrue())
	s.Expect(root.Attributes().AsRaw()).To(Equal(map[string]any{
		"cluster": s.Namespace + "/prod", "machine": s.Namespace + "/" + m.Name, "account": s.Namespace + "/prod", "pool": s.Namespace +
			"/workers",
		"cloud": "simulated", "instanceType": "small", "zone": m.Status.FailureDomain, "providerID": m.Spec.ProviderID, "node": m.Name,
	}))
	var names []string
	at, sum := root.StartTimestamp(), 0.0
	for _, step := range first[1:] {
		names = append(names, step.Name())
		s.Expect(step.ParentSpanID()).To(Equal(root.SpanID()))
		s.Expect(step.StartTimestamp()).To(Equal(at), step.Name())
		s.Expect(step.EndTimestamp()).To(BeNumerically(">=", at), step.Name())
		sum += step.EndTimestamp().AsTime().Sub(at.AsTime()).Seconds()
		at = step.EndTimestamp()
	}
	s.Expect(names).To(Equal([]string{"queue", "start", "boot", "certificate", "register", "ready"}))
	s.Expect(at).To(Equal(root.EndTimestamp()))
	s.Expect(sum).To(BeNumerically("~", root.EndTimestamp().AsTime().Sub(root.StartTimestamp().AsTime()).Seconds(), 1e-6))

	restart(s)
	s.Eventually(func() [][]ptrace.Span { return received(s, m) }).Should(HaveLen(2))
	again := received(s, m)[1]
	s.Expect(again).To(HaveLen(len(first)))
	for i, span := range again {
		s.Expect(span.SpanID()).To(Equal(first[i].SpanID()))
		s.Expect([]any{span.Name(), span.StartTimestamp(),
			span.EndTimestamp()}).To(Equal([]any{first[i].Name(), first[i].StartTimestamp(), first[i].EndTimestamp()}))
	}
}

// TestTraceOfAFailure: a machine that is deleted before it has a Node has a trace, too. It ends with
// the step in which the machine was, and why. Nothing of it is a sentence of the guest.
func TestTraceOfAFailure(t *testing.T) {
	s := newTenant(t)
	_, err := env.admin.AddFault(s.ctx, simulator.Fault{Kind: simulator.DeadBody, Operation: wire.RunInstances, Count: 1})
	s.Expect(err).NotTo(HaveOccurred())
	pool := scenario.Pool{Cluster: s.Adopted, Name: "workers", Replicas: 1}
	s.create(s.credentials(), s.kubeconfigSecret(s.Kubeconfig), s.Account(), s.DroverCluster(), s.ControlPlane(), s.Cluster())
	s.create(pool.Objects()...)
	m := machineOf(s, pool, func(m *infrav1.DroverMachine) bool { return m.Status.InstanceState == infrav1.InstanceStateRunning })
	s.Expect(env.client.Delete(s.ctx, pool.Deployment())).To(Succeed())
	s.Eventually(func() [][]ptrace.Span { return received(s, m) }).Should(HaveLen(1))
	spans := received(s, m)[0]
	last := spans[len(spans)-1]
	s.Expect(last.Name()).To(Equal("boot"))
	for _, span := range []ptrace.Span{spans[0], last} {
		s.Expect(span.Status().Code()).To(Equal(ptrace.StatusCodeError))
		s.Expect(span.Status().Message()).To(Equal(infrav1.WaitingForNodeReason))
	}
}
