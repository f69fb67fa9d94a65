// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// awsSecret is the secret key of the account. It is not a real secret.
const awsSecret = "measured/secret+access/key"

// amazon is a stand-in for EC2, in this process.
type amazon struct {
	cloud    *ec2stub.Cloud
	fleet    *body.Fleet
	throttle bool
	cancel   context.CancelFunc
	closers  []func()
}

// Cleanup registers a function to run at the end. ec2stub.New requires it.
func (a *amazon) Cleanup(do func()) { a.closers = append(a.closers, do) }

func (a *amazon) start(_ context.Context, o Options) error {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel, a.throttle = cancel, o.Throttle == simulator.ThrottleEC2
	a.fleet = body.NewFleet(ctx, quietBodies())
	a.cloud = ec2stub.New(a, ec2stub.Options{
		Keys: map[string]string{rig.AWSKey: awsSecret}, Boot: o.Joins, Stop: time.Second, Latency: o.Latency,
		Throttle: a.throttle, Power: rig.Power(a.fleet),
	})
	return nil
}

func (a *amazon) adopt(c *scenario.Adopted) {
	c.Dress = func(o client.Object) {
		rig.DressAWS(o, a.cloud.URL, awsSecret)
		if account, ok := o.(*infrav1.DroverAccount); ok && a.throttle {
			account.Spec.RateLimits = nil // the driver's defaults are EC2's limits
		}
	}
}

func (a *amazon) calls(context.Context) (map[string]int, int, error) {
	return a.cloud.Calls(), a.cloud.Throttled(), nil
}

func (a *amazon) books(context.Context) (b books, err error) {
	for _, e := range a.cloud.Books() {
		if e.Living() {
			b.live++
		}
		if e.State == "" {
			continue
		}
		b.vms++
		if e.Made.After(b.last) {
			b.last = e.Made
		}
	}
	return b, nil
}

func (a *amazon) terminate(_ context.Context, id string) error {
	a.cloud.Interrupt(id)
	return nil
}

func (a *amazon) processes() map[string]*playground.Process { return nil }

func (a *amazon) stop() error {
	if a.cancel == nil {
		return nil
	}
	for _, do := range a.closers {
		do()
	}
	a.cancel()
	a.fleet.Wait()
	return nil
}
