// SPDX-License-Identifier: Apache-2.0

package body

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const (
	// manifests is where kubeadm writes static pods.
	manifests = "/etc/kubernetes/manifests"
	// podRestart is the time until a program that ended is started again. A kubelet waits longer.
	podRestart = time.Second
	// mirrorInterval is the time after which a mirror pod is looked at again.
	mirrorInterval = 10 * time.Second
	// probeTimeout bounds a probe for a mirror pod's state.
	probeTimeout = 2 * time.Second
)

// Annotations of mirror pods (k8s.io/kubernetes/pkg/kubelet/types).
const (
	hashAnnotation   = "kubernetes.io/config.hash"
	sourceAnnotation = "kubernetes.io/config.source"
)

// staticPod is a static pod: a program that runs as its manifest says, and the pod that shows it.
type staticPod struct {
	pod  *corev1.Pod
	hash string
	stop context.CancelFunc
	// ended is closed when the program has ended for good.
	ended   chan struct{}
	started atomic.Bool
	// shown is the state that the mirror pod shows, and shownAt when that was written.
	shown   *bool
	shownAt time.Time
	said    string // why it could not be written
}

// keepStaticPods runs the manifests' programs, and shows them as mirror pods, until ctx ends.
func (c *controlPlane) keepStaticPods(ctx context.Context) {
	var programs sync.WaitGroup
	for ; ctx.Err() == nil; pause(ctx, kubeletPoll) {
		wanted, err := c.readManifests()
		if err != nil {
			continue
		}
		for name, p := range c.pods {
			if w := wanted[name]; w == nil || w.hash != p.hash {
				p.stop()
				<-p.ended
				delete(c.pods, name)
				if w == nil {
					c.removeMirror(ctx, p)
				}
			}
		}
		for name, p := range wanted {
			if c.pods[name] == nil {
				var run context.Context
				run, p.stop = context.WithCancel(ctx)
				p.ended = make(chan struct{})
				c.pods[name] = p
				programs.Go(func() { c.runProgram(run, p) })
			}
		}
		c.showPods(ctx)
	}
	for _, p := range c.pods {
		p.stop()
	}
	programs.Wait()
}

// readManifests returns the static pods by file name. A file that is not a pod yet is left out.
func (c *controlPlane) readManifests() (map[string]*staticPod, error) {
	names, err := c.host.ReadDir(manifests)
	if err != nil {
		return nil, err
	}
	found := map[string]*staticPod{}
	for _, name := range names {
		content, err := c.host.ReadFile(path.Join(manifests, name))
		pod := &corev1.Pod{}
		if err != nil || strings.HasPrefix(name, ".") || yaml.Unmarshal(content, pod) != nil || len(pod.Spec.Containers) != 1 ||
			len(pod.Spec.Containers[0].Command) == 0 {
			continue
		}
		sum := sha256.Sum256(content)
		found[name] = &staticPod{pod: pod, hash: hex.EncodeToString(sum[:16])}
	}
	return found, nil
}

// runProgram runs a static pod's program, again and again, until ctx ends.
func (c *controlPlane) runProgram(ctx context.Context, p *staticPod) {
	defer close(p.ended)
	container := p.pod.Spec.Containers[0]
	var env []string
	for _, e := range container.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	log, err := c.log(p.pod.Name)
	if err != nil {
		c.say("kubelet: %v", err)
		return
	}
	defer func() { _ = log.Close() }()
	for ; ctx.Err() == nil; pause(ctx, podRestart) {
		run, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		if container.LivenessProbe != nil {
			watching.Go(func() { c.endDead(run, p, container.LivenessProbe, end) })
		}
		p.started.Store(true)
		err := c.host.Run(run, log, env, append(slices.Clone(container.Command), container.Args...)...)
		p.started.Store(false)
		end()
		watching.Wait()
		if ctx.Err() == nil {
			c.say("kubelet: %s ended: %v", p.pod.Name, err)
		}
	}
}

// endDead ends a program that has lived, and whose liveness probe then fails as often in turn as
// its manifest says. That is what ends the clients' connections to an API server whose etcd is
// gone.
func (c *controlPlane) endDead(ctx context.Context, p *staticPod, probe *corev1.Probe, end func()) {
	// The API server's defaults: manifests do not pass it.
	period := time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second
	timeout := time.Duration(cmp.Or(probe.TimeoutSeconds, 1)) * time.Second
	limit := cmp.Or(probe.FailureThreshold, 3)
	for lived, failed := false, int32(0); ctx.Err() == nil; pause(ctx, period) {
		if c.probe(ctx, p.pod, probe, timeout) {
			lived, failed = true, 0
			continue
		}
		if failed++; lived && failed >= limit && ctx.Err() == nil {
			c.say("kubelet: %s has failed its liveness probe %d times: restarting it", p.pod.Name, failed)
			end()
		}
	}
}

// showPods writes the mirror pods that are missing or whose state has changed. Whatever fails is
// tried again the next time.
func (c *controlPlane) showPods(ctx context.Context) {
	c.mu.Lock()
	joined := c.phase == PhaseJoined
	c.mu.Unlock()
	if !joined {
		return
	}
	var probes sync.WaitGroup
	for _, p := range c.pods {
		probes.Go(func() {
			container := p.pod.Spec.Containers[0]
			ready := p.started.Load() && c.probe(ctx, p.pod, container.ReadinessProbe, probeTimeout) &&
				c.probe(ctx, p.pod, container.LivenessProbe, probeTimeout)
			if p.shown != nil && *p.shown == ready && time.Since(p.shownAt) < mirrorInterval {
				return
			}
			if err := c.showPod(ctx, p, ready); err != nil {
				if text := plain(err); ctx.Err() == nil && text != p.said {
					p.said = text
					c.say("kubelet: mirror pod of %s: %s", p.pod.Name, text)
				}
				return
			}
			p.shown, p.shownAt, p.said = &ready, time.Now(), ""
		})
	}
	probes.Wait()
}

// probe asks the program as a probe of its manifest does. Without the probe, it answers.
func (c *controlPlane) probe(ctx context.Context, pod *corev1.Pod, probe *corev1.Probe, timeout time.Duration) bool {
	if probe == nil || probe.HTTPGet == nil {
		return true
	}
	port := probe.HTTPGet.Port.IntVal
	for _, named := range pod.Spec.Containers[0].Ports {
		if named.Name == probe.HTTPGet.Port.StrVal && port == 0 {
			port = named.ContainerPort
		}
	}
	return c.answers(ctx, probe.HTTPGet, port, timeout)
}

// answers makes one HTTP request on the machine. As a kubelet's, it verifies no certificate.
func (c *controlPlane) answers(ctx context.Context, get *corev1.HTTPGetAction, port int32, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address := strings.ToLower(string(get.Scheme)) + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) + get.Path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return c.dialProbe(ctx, get.Host, port)
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode >= 200 && resp.StatusCode < 400
}

// dialProbe connects to the probe's host: the API server listens on the machine's address.
func (c *controlPlane) dialProbe(ctx context.Context, where string, port int32) (net.Conn, error) {
	if where == c.machine.IP {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(where, strconv.Itoa(int(port))))
	}
	return c.host.Dial(ctx, port)
}

// mirror returns the pod that shows a static pod. NodeRestriction admits it only with all that is
// here.
func (c *controlPlane) mirror(p *staticPod) *corev1.Pod {
	pod := p.pod.DeepCopy()
	pod.Name += "-" + c.kubelet.node
	pod.Spec.NodeName = c.kubelet.node
	pod.Spec.Tolerations = append(pod.Spec.Tolerations,
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	annotations := map[string]string{corev1.MirrorPodAnnotationKey: p.hash, hashAnnotation: p.hash, sourceAnnotation: "file"}
	maps.Copy(annotations, pod.Annotations)
	pod.Annotations = annotations
	c.beating.Lock()
	defer c.beating.Unlock()
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: c.kubelet.node, UID: c.node.heartbeat.uid, Controller: ptr.To(true),
	}}
	return pod
}

// showPod makes the mirror pod what it should be: that of this manifest, with this state.
func (c *controlPlane) showPod(ctx context.Context, p *staticPod, ready bool) error {
	want := c.mirror(p)
	pods := c.node.core.Pods(want.Namespace)
	return c.fleet.request(ctx, func(ctx context.Context) error {
		have, err := pods.Create(ctx, want, metav1.CreateOptions{}) // first: a node may not read a pod that is not there
		if apierrors.IsAlreadyExists(err) {
			have, err = pods.Get(ctx, want.Name, metav1.GetOptions{})
		}
		if err == nil && (have.Annotations[corev1.MirrorPodAnnotationKey] != p.hash || have.DeletionTimestamp != nil) {
			if err = pods.Delete(ctx, want.Name, *metav1.NewDeleteOptions(0)); err == nil {
				return errors.New("it is that of another manifest, and is deleted")
			}
		}
		if err != nil {
			return err
		}
		status := runningStatus(have, c.kubelet.nodeIP, metav1.Now())
		setReady(&status, ready)
		if samePodStatus(have.Status, status) {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, want.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// setReady makes a running pod's status one of a pod whose probes fail, unless ready is true.
func setReady(status *corev1.PodStatus, ready bool) {
	if ready {
		return
	}
	for i, condition := range status.Conditions {
		if condition.Type == corev1.PodReady || condition.Type == corev1.ContainersReady {
			status.Conditions[i].Status, status.Conditions[i].Reason = corev1.ConditionFalse, "ContainersNotReady"
		}
	}
	for i := range status.ContainerStatuses {
		status.ContainerStatuses[i].Ready = false
	}
}

// samePodStatus compares phase and conditions.
func samePodStatus(a, b corev1.PodStatus) bool {
	if a.Phase != b.Phase {
		return false
	}
	for _, want := range b.Conditions {
		if !slices.ContainsFunc(a.Conditions, func(have corev1.PodCondition) bool {
			return have.Type == want.Type &&
				have.Status == want.Status
		}) {
			return false
		}
	}
	return true
}

// removeMirror deletes the mirror pod of a manifest that is gone.
func (c *controlPlane) removeMirror(ctx context.Context, p *staticPod) {
	if p.shown == nil {
		return
	}
	_ = c.fleet.request(ctx, func(ctx context.Context) error {
		return c.node.core.Pods(p.pod.Namespace).Delete(ctx, p.pod.Name+"-"+c.kubelet.node, *metav1.NewDeleteOptions(0))
	})
}
