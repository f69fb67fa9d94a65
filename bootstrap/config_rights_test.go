// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"slices"
	"testing"

	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
)

// TestTokenGroups: a token is in no group of kubeadm, whose requests are approved automatically,
// and every grant for a join by kubeadm is to a group of that token. TestDroverConfig of
// test/bootstrap/kubeadm checks this with an API server.
func TestTokenGroups(t *testing.T) {
	for method, want := range map[bootstrapv1.JoinMethod]struct {
		groups []string
		grants int
	}{
		"":                      {[]string{token.Group}, 1},
		bootstrapv1.JoinKubelet: {[]string{token.Group}, 1},
		bootstrapv1.JoinKubeadm: {[]string{token.Group, token.KubeadmGroup}, 4},
	} {
		config := &bootstrapv1.DroverConfig{Spec: bootstrapv1.DroverConfigSpec{Join: bootstrapv1.Join{Method: method}}}
		groups := tokenGroups(config)
		if !slices.Equal(groups, want.groups) {
			t.Errorf("%q: %v", method, groups)
		}
		for _, g := range groups {
			if err := bootstraputil.ValidateBootstrapGroupName(g); err != nil {
				t.Errorf("the API server would refuse the group: %v", err)
			}
		}
		grants := grantsOf(config)
		if len(grants) != want.grants {
			t.Errorf("%q: %v", method, grants)
		}
		for _, g := range grants {
			if !slices.Contains(groups, g.group) {
				t.Errorf("%q: %s is granted to others", method, g.role)
			}
		}
	}
}
