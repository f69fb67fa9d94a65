// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
)

// place is the cluster and namespace that the account's calls reach, as the API server has proved.
type place struct {
	mu    sync.Mutex
	id    string // "" until it is known
	moved error  // set while another cluster's API server answers
}

// verified returns the place that was proved before, or "" if it must be proved first.
func (p *place) verified() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moved != nil {
		return ""
	}
	return p.id
}

// check returns Conflict while another cluster answers, because its answers prove nothing about
// machines.
func (p *place) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// verifyPlace reads which place the calls reach, and returns Conflict if it is another than before.
func (d *driver) verifyPlace(ctx context.Context) (string, error) {
	where, err := d.identify(ctx)
	if err != nil {
		return "", err
	}
	p := &d.place
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.id == "" {
		p.id = where
	}
	if p.moved = nil; where != p.id {
		p.moved = cloud.Errorf(cloud.Conflict, "the API server is now %q instead of %q: Drover does not use it", where, p.id)
	}
	return where, p.moved
}

// identify identifies the cluster by the UID of its namespace kube-system, which is unique. If the
// account may not read that, identify uses the authority of the API server's certificate.
func (d *driver) identify(ctx context.Context) (string, error) {
	op := operation{"GetNamespace", cloud.ClassRead, http.MethodGet, metadataOfOne, "PartialObjectMetadata"}
	var system metav1.PartialObjectMetadata
	err := d.call(ctx, op, "api/v1/namespaces/"+metav1.NamespaceSystem, nil, nil, &system)
	switch {
	case isForbidden(err):
		return "kubevirt-ca:" + digest(d.ca) + ":" + d.namespace, nil
	case err != nil:
		return "", err
	case system.UID == "":
		return "", cloud.Errorf(cloud.Unknown, "%s: the namespace has no UID", op.name)
	}
	return "kubevirt:" + string(system.UID) + ":" + d.namespace, nil
}

// digest hashes the certificates alone, because a bundle can be formatted in many ways.
func digest(bundle []byte) string {
	sum := sha256.New()
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		sum.Write(block.Bytes)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}
