// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
)

// place is where the account's calls lead, as the API server itself has proved it.
type place struct {
	mu    sync.Mutex
	where string // "" until it was asked for
	moved error  // the API server that answers now is another cluster's
}

// known returns what was proved before; "" where it is to be asked for.
func (p *place) known() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved != nil {
		return ""
	}
	return p.where
}

// admits returns Conflict while another cluster answers. What it says about machines proves
// nothing.
func (p *place) admits() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// prove asks where the calls lead, and returns Conflict where that is elsewhere than before.
func (d *driver) prove(ctx context.Context) (string, error) {
	where, err := d.ask(ctx)
	if err != nil {
		return "", err
	}
	p := &d.place
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.where == "" {
		p.where = where
	}
	if p.moved = nil; where != p.where {
		p.moved = cloud.Errorf(cloud.Conflict, "the API server answers as %q, and was %q: nothing is read, made or deleted there", where, p.where)
	}
	return where, p.moved
}

// ask names the cluster by the UID of its namespace kube-system, which no other cluster has. Where
// that may not be read, it is the authority by which the API server proves itself.
func (d *driver) ask(ctx context.Context) (string, error) {
	op := operation{"GetNamespace", cloud.ClassRead, http.MethodGet, metadataOfOne, "PartialObjectMetadata"}
	var system metav1.PartialObjectMetadata
	err := d.call(ctx, op, "api/v1/namespaces/"+metav1.NamespaceSystem, nil, nil, &system)
	var answer statusError
	switch {
	case errors.As(err, &answer) && answer.reason == metav1.StatusReasonForbidden:
		return "kubevirt-ca:" + digest(d.ca) + ":" + d.namespace, nil
	case err != nil:
		return "", err
	case system.UID == "":
		return "", cloud.Errorf(cloud.Unknown, "%s: the namespace has no UID", op.name)
	}
	return "kubevirt:" + string(system.UID) + ":" + d.namespace, nil
}

// digest is of the certificates alone: a bundle may be written in many ways.
func digest(bundle []byte) string {
	sum := sha256.New()
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		sum.Write(block.Bytes)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}
