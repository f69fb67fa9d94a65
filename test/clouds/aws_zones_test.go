// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestZoneOnRecord tests a manager that dies after creates in the only zone with capacity, before
// it gets the answers. Then only the two other zones have capacity, and EC2 does not list the new
// instances yet. The next manager must neither create a second instance in another zone nor lose
// the first.
func TestZoneOnRecord(t *testing.T) {
	s := startOn(t, "aws", "zones")
	capacity := func(a, b, c int) {
		s.AWS.SetCapacity("us-east-1a", a)
		s.AWS.SetCapacity("us-east-1b", b)
		s.AWS.SetCapacity("us-east-1c", c)
	}
	const machines = 4 // each starts with a random zone
	capacity(0, 0, -1)
	var refused atomic.Int32
	s.Cloud.SetRule(func(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		switch {
		case c.Verb != "RunInstances" || at != faultproxy.After:
			return faultproxy.Verdict{}
		case c.Status == http.StatusOK:
			return faultproxy.Hang(ctx)
		}
		refused.Add(1)
		return faultproxy.Verdict{}
	})
	pool := s.NewPool("md", machines)
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, pool.Objects()...))
	s.Until("all instances are made, and nobody was told", func(context.Context) (string, error) {
		return missing(machines, len(s.Instances(s.Books()))), nil
	})
	house.Seat.Process.Kill()
	s.Logf("%d creates were refused for want of capacity before", refused.Load())

	s.Cloud.SetRule(nil)
	capacity(-1, -1, 0)
	s.AWS.SetLag(time.Hour)
	s.Do(house.StartManager(s.Ctx))
	list := &infrav1.DroverMachineList{}
	s.Until("all are on record", func(ctx context.Context) (string, error) {
		if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		recorded := 0
		for _, m := range list.Items {
			if m.Spec.ProviderID != "" {
				recorded++
			}
		}
		return missing(machines, recorded), nil
	})
	s.Do(s.Twice(s.Books()))
	s.AWS.SetLag(0)
	s.Until("all are ready", pool.Ready(s.Rig.Client, machines))
	s.Do(s.Rig.Client.List(s.Ctx, list, client.InNamespace(s.Namespace)))
	for _, m := range list.Items {
		if m.Spec.Creation.FailureDomain != "us-east-1c" || !strings.HasPrefix(m.Spec.ProviderID, "aws:///us-east-1c/") ||
			m.Status.ImageID != "ami-0ee9" {
			t.Errorf("%s: on record %s, %s, image %s", m.Name, m.Spec.Creation.FailureDomain, m.Spec.ProviderID, m.Status.ImageID)
		}
	}
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.Empty()
}

func missing(want, have int) string {
	if have != want {
		return fmt.Sprintf("%d of %d", have, want)
	}
	return ""
}
