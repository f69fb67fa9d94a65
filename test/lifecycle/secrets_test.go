// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// secrets holds values that may occur only in Secrets, by a description.
type secrets map[string]string

// find returns which of the secrets occur in a text, in plain or as base64.
func (s secrets) find(text []byte) (found []string) {
	for what, secret := range s {
		if i := bytes.Index(text, []byte(secret)); i >= 0 {
			found = append(found, fmt.Sprintf("%s in …%s…", what, text[max(0, i-200):min(len(text), i+len(secret)+40)]))
		}
		for shift := range 3 { // the offset within a group of three bytes is unknown
			encoded := base64.StdEncoding.EncodeToString(append(make([]byte, shift), secret...))
			if middle := encoded[4 : len(encoded)-4]; bytes.Contains(text, []byte(middle)) {
				found = append(found, what+" as base64")
			}
		}
	}
	return found
}

// secretsStaySecret searches a manager's whole output for secrets, while machines are created, fail
// in every way that involves a secret, and are deleted. The manager logs at the verbosity that
// shows every request, and the cloud repeats secrets in its answers.
func (h *house) secretsStaySecret() {
	const credentials, content, kubeconfig = "HUSH-credentials-8f1d3a", "HUSH-content-77b0e2", "HUSH-kubeconfig-19ce5d"
	pool := h.adopted("secrets")
	pool.Replicas = 1
	pool.Cluster.Token = credentials
	pool.Config = bootstrapv1.DroverConfigSpec{
		Files:              []bootstrapv1.File{{Path: "/etc/password", Content: content, Permissions: "0600"}},
		PreKubeletCommands: []string{"echo " + content + " >/dev/null"},
	}
	h.tokens(pool, credentials)
	hidden := secrets{"the cloud's token": credentials, "the kubeconfig's client key": clientKey(h, pool.Cluster.Kubeconfig)}
	drover := h.start("-v=6")

	// The pool comes up.
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("the bootstrap token is there", func(ctx context.Context) (string, error) {
		list := &corev1.SecretList{}
		err := h.client.List(ctx, list, client.InNamespace(pool.Cluster.Namespace), client.HasLabels{clusterv1.ClusterNameLabel})
		for _, secret := range list.Items {
			if id, token, ok := strings.Cut(string(secret.Data["bootstrap-token"]), "."); ok {
				hidden["the bootstrap token"] = token
				_ = id // part of the token Secret's name, and no secret
				return "", nil
			}
		}
		return "there is none", err
	})
	h.soon("the machine is ready", pool.Ready(h.client, 1))

	// The cloud repeats the caller's token in an error code.
	for _, op := range []string{wire.RunInstances, wire.DescribeResources, wire.DescribeCatalog} {
		// Longer than the part of a code that Drover keeps: the cut falls within the token.
		for _, code := range []string{"No." + credentials, strings.Repeat("x", 52) + "." + credentials} {
			h.fault(simulator.Fault{Kind: simulator.ErrorBefore, Operation: op, Account: "house-secrets", Code: code, Count: 1})
		}
	}
	if err := pool.Scale(h.ctx, h.client, 2); err != nil {
		h.Fatal(err)
	}
	h.soon("the second machine is ready in spite of it", pool.Ready(h.client, 2))

	// The credentials are revoked, corrupted, and restored.
	account := pool.Cluster.Account()
	h.tokens(pool, "another")
	h.soon("the account is refused", h.says(account, clusterv1.ReadyCondition, infrav1.UnauthorizedReason))
	h.secret(pool, "-credentials", "token", credentials+"\n"+credentials+"\x00")
	h.soon("the account is refused for its form", h.says(account, clusterv1.ReadyCondition, infrav1.UnauthorizedReason, "characters"))
	h.secret(pool, "-credentials", "token", credentials)
	h.tokens(pool, credentials)
	h.soon("the account works again", h.says(account, clusterv1.ReadyCondition, infrav1.ReadyReason))

	// The kubeconfig is corrupted in several ways.
	hidden["the spoilt kubeconfig"] = kubeconfig
	control := pool.Cluster.ControlPlane()
	for spoilt, reason := range map[string]string{
		kubeconfig + ": [": controlplanev1.KubeconfigRefusedReason,
		"apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user: {token: " + kubeconfig + ", exec: {command: " + kubeconfig +
			"}}\n": controlplanev1.KubeconfigRefusedReason,
		strings.ReplaceAll(string(pool.Cluster.Kubeconfig), "client-key-data:",
			"client-key-data: "+kubeconfig+"\n    x-client-key-data:"): controlplanev1.KubeconfigRefusedReason,
	} {
		h.secret(pool, "-adopted", "value", spoilt)
		h.soon("the kubeconfig is refused", h.says(control, clusterv1.AvailableCondition, reason))
		h.secret(pool, "-adopted", "value", string(pool.Cluster.Kubeconfig))
		h.soon("the control plane answers again", h.says(control, clusterv1.AvailableCondition, controlplanev1.AvailableReason))
	}

	// The pool is deleted, while the cloud repeats the token once more.
	for _, op := range []string{wire.TerminateInstances, wire.DescribeResources} {
		h.fault(simulator.Fault{Kind: simulator.ErrorBefore, Operation: op, Account: "house-secrets", Code: "No." + credentials, Count: 1})
	}
	h.search(drover, hidden, secrets{"a file's content": content})
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
	h.search(drover, hidden, secrets{"a file's content": content})
}

// clientKey returns a line from the middle of a kubeconfig's private key.
func clientKey(h *house, kubeconfig []byte) string {
	h.Helper()
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		h.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		if lines := strings.Split(string(user.ClientKeyData), "\n"); len(lines) > 2 {
			return lines[1]
		}
	}
	h.Fatal("the kubeconfig has no client key")
	return ""
}

func (h *house) tokens(pool scenario.Pool, tokens ...string) {
	h.Helper()
	if err := env.admin.SetTokens(h.ctx, "house-"+pool.Cluster.Name, tokens...); err != nil {
		h.Fatal(err)
	}
}

func (h *house) fault(f simulator.Fault) {
	h.Helper()
	if _, err := env.admin.AddFault(h.ctx, f); err != nil {
		h.Fatal(err)
	}
}

// secret sets a key of a Secret of the pool's cluster.
func (h *house) secret(pool scenario.Pool, suffix, key, value string) {
	h.Helper()
	o := &corev1.Secret{}
	if err := h.client.Get(h.ctx, client.ObjectKey{Namespace: pool.Cluster.Namespace, Name: pool.Cluster.Name + suffix}, o); err != nil {
		h.Fatal(err)
	}
	before := o.DeepCopy()
	o.Data = map[string][]byte{key: []byte(value)}
	if err := h.client.Patch(h.ctx, o, client.MergeFrom(before)); err != nil {
		h.Fatal(err)
	}
}

// search looks for the secrets in the manager's log and metrics, and in all objects except Secrets.
// Secrets in the spec of the user's own templates may occur there and in the objects that Cluster
// API clones from them, and nowhere else.
func (h *house) search(drover *playground.Process, hidden, ofTemplates secrets) {
	h.Helper()
	everywhere := secrets{}
	for _, s := range []secrets{hidden, ofTemplates} {
		for what, secret := range s {
			everywhere[what] = secret
		}
	}
	report := func(where string, found []string) {
		for _, f := range found {
			h.Errorf("%s: %s", where, f)
		}
	}
	log, err := os.ReadFile(drover.Log)
	if err != nil || !bytes.Contains(log, []byte("GET https://")) && !bytes.Contains(log, []byte(`verb="GET"`)) {
		h.Errorf("the log does not show requests, so that there is little to be found in it: %v", err)
	}
	report("the manager's log", everywhere.find(log))

	resp, err := (&http.Client{Timeout: 10 * time.Second}).Get(drover.Metrics)
	if err != nil {
		h.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Contains(metrics, []byte("drover_cloud_calls_total")) {
		h.Errorf("the metrics do not count calls: %v", err)
	}
	report("the metrics", everywhere.find(metrics))

	objects := 0
	for _, list := range []client.ObjectList{
		&corev1.EventList{}, &eventsv1.EventList{}, &corev1.NodeList{}, &corev1.ConfigMapList{}, &certificatesv1.CertificateSigningRequestList{},
		&clusterv1.ClusterList{}, &clusterv1.MachineList{}, &clusterv1.MachineSetList{}, &clusterv1.MachineDeploymentList{},
		&infrav1.DroverAccountList{}, &infrav1.DroverClusterList{}, &infrav1.DroverMachineList{}, &infrav1.DroverMachineTemplateList{},
		&controlplanev1.AdoptedControlPlaneList{}, &bootstrapv1.DroverConfigList{}, &bootstrapv1.DroverConfigTemplateList{},
	} {
		if err := h.client.List(h.ctx, list); err != nil {
			h.Fatal(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			objects++
			text, err := json.Marshal(o)
			if err != nil {
				return err
			}
			switch o := o.(type) {
			case *bootstrapv1.DroverConfig:
				report("DroverConfig "+o.Name, hidden.find(text))
				if text, err = json.Marshal(o.Status); err != nil {
					return err
				}
			case *bootstrapv1.DroverConfigTemplate:
				report("DroverConfigTemplate "+o.Name, hidden.find(text))
				return nil
			}
			report(fmt.Sprintf("%T %s", o, o.(client.Object).GetName()), everywhere.find(text))
			return nil
		}); err != nil {
			h.Fatal(err)
		}
	}
	if objects < 20 {
		h.Errorf("only %d objects were searched", objects)
	}
}

// says checks that a condition of an object has the reason, and the words in its message.
func (h *house) says(o conditioned, condition, reason string, words ...string) scenario.Check {
	return saysTo(h.client, o, condition, reason, words...)
}
