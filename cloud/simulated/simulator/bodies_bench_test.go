// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"context"
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
)

var (
	benchBodies = flag.Int("bodies", 5000, "number of bodies in BenchmarkBodies")
	benchLease  = flag.String("bodies-lease", "60s", "time between two renewals of a lease in BenchmarkBodies")
	benchNoPods = flag.Bool("bodies-no-pods", false, "no watch on pods in BenchmarkBodies")
)

// BenchmarkBodies measures what a process with many joined bodies costs:
//
//	go test -run '^$' -bench Bodies -benchtime 1x -timeout 30m ./cloud/simulated/simulator -args -bodies 5000
func BenchmarkBodies(b *testing.B) {
	g := NewWithT(b)
	plane, err := playground.StartControlPlane(b.Context(), playground.ControlPlaneOptions{
		Progress:              os.Stderr,
		ControllerManagerArgs: []string{"--node-monitor-grace-period=1h", "--node-startup-grace-period=1h"},
		APIServerArgs:         []string{"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(plane.Stop()).To(Succeed()) }()
	kube := kubernetes.NewForConfigOrDie(plane.AdminConfig())
	g.Expect(allowBootstrap(b.Context(), kube)).To(Succeed())
	token, err := makeToken(b.Context(), kube, 1)
	g.Expect(err).NotTo(HaveOccurred())
	approving, stop := context.WithCancel(b.Context())
	defer stop()
	go approveAll(approving, kube)

	args := []string{"--throttle=none", "--lease-interval=" + *benchLease}
	if *benchNoPods {
		args = append(args, "--no-pods")
	}
	for b.Loop() {
		cloud, err := playground.StartSimulator(b.Context(), playground.SimulatorOptions{Args: args})
		g.Expect(err).NotTo(HaveOccurred())
		admin := simulator.Admin{URL: cloud.URL}
		began := time.Now()
		for n := range *benchBodies {
			data, err := render.UserData(render.Input{
				Spec: &bootstrapv1.DroverConfigSpec{}, NodeName: "node-" + wireName(n), Server: plane.URL, CA: plane.CA(), Token: token,
				ProviderID: "simulated:///{{ v1.availability_zone }}/{{ v1.instance_id }}",
			})
			g.Expect(err).NotTo(HaveOccurred())
			_, err = admin.Run(b.Context(), "default", wire.RunInstancesRequest{Region: "sim-1", InstanceType: "small", Image: "node-image",
				UserData: data})
			g.Expect(err).NotTo(HaveOccurred())
		}
		b.Logf("%d instances made in %s", *benchBodies, time.Since(began).Round(time.Second))
		g.Eventually(func(g Gomega) {
			s, err := admin.Snapshot(b.Context())
			g.Expect(err).NotTo(HaveOccurred())
			phases := map[string]int{}
			for _, i := range s.Instances() {
				phases[string(i.Body.Phase)]++
			}
			g.Expect(phases).To(HaveKeyWithValue("Joined", *benchBodies))
		}, 20*time.Minute, 2*time.Second).Should(Succeed())
		joined := time.Since(began)
		time.Sleep(time.Minute) // an idle minute shows the cost of heartbeats
		u, err := cloud.Usage()
		g.Expect(err).NotTo(HaveOccurred())
		server, err := plane.APIServer().Usage()
		g.Expect(err).NotTo(HaveOccurred())
		b.ReportMetric(joined.Seconds(), "s-to-joined")
		b.ReportMetric(float64(u.PeakMemory)/(1<<20), "peak-MiB")
		b.ReportMetric(u.CPU.Seconds(), "cpu-s")
		b.ReportMetric(float64(server.PeakMemory)/(1<<20), "apiserver-peak-MiB")
		g.Expect(cloud.Stop()).To(Succeed())
	}
}

func wireName(n int) string {
	return string([]byte{byte('a' + n/676%26), byte('a' + n/26%26), byte('a' + n%26)}) + "x"
}

// approveAll approves signing requests as they arrive, several in parallel.
func approveAll(ctx context.Context, kube *kubernetes.Clientset) {
	requests := kube.CertificatesV1().CertificateSigningRequests()
	for ctx.Err() == nil {
		w, err := requests.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				for e := range w.ResultChan() {
					csr, ok := e.Object.(*certificatesv1.CertificateSigningRequest)
					if !ok || len(csr.Status.Conditions) > 0 {
						continue
					}
					csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
						Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
					})
					_, _ = requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
				}
			})
		}
		workers.Wait()
	}
}
