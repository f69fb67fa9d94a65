// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/takeover"
)

var where = flag.String("cloud", "aws", "where the machines are made: aws, azure or gcp for a stand-in, or vsphere for govmomi's vCenter")

// clouds has a row for each value of -cloud.
var clouds = map[string]row{"aws": onAWS, "azure": onAzure, "gcp": onGCP, "vsphere": onVSphere}

// row is what the tests of all clouds must know of one.
type row struct {
	start rig.Begin
	// standIn returns the stand-in of a stage.
	standIn func(*rig.Stage) standIn
	// prefix is what provider IDs begin with, and id a regular expression of what follows, with
	// NAME for the Node's name. Without it, names are not compared.
	prefix func(*rig.Stage) string
	id     string
	// disks is how many other resources an instance has in the books.
	disks int
	// lose ends a machine behind Drover's back.
	lose func(*stage, string)
	// deployment prepares TestMachineDeployment, and returns what must be true of its machines, and
	// what is checked in the end. It may be nil.
	deployment func(*stage) (scenario.Check, func())

	endpoint *endpoint                     // nil: there are no load balancers
	fleet    func(*testing.T, int) counted // nil: TestFleet is of other clouds

	// mcm and mc are the cloud for machine-controller-manager and machine-controller. They are nil
	// for AWS, of which test/takeover is.
	mcm, mc *handover
	// change is why the machines that were taken over roll.
	change func(*infrav1.DroverMachineFields)
	// end waits in place of Empty until the machines that were taken over are gone.
	end func(*stage)
}

// standIn is what all stand-ins have.
type standIn interface{ Calls() map[string]int }

var (
	house = rig.House{Patience: 30 * time.Minute} // hundreds of machines take long on a busy computer
	here  row                                     // set only by TestMain
	// ran and skipped count tests.
	ran, skipped atomic.Int32
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	var ok bool
	if here, ok = clouds[*where]; !ok {
		fmt.Fprintf(os.Stderr, "-cloud %s: there is no such\n", *where)
		return 1
	}
	code := house.Main(m, begin)
	if skipped.Load() > 0 && ran.Load() == 0 {
		fmt.Fprintf(os.Stderr, "all chosen tests are of other clouds than %s\n", *where)
		return 1
	}
	return code
}

// begin starts the rig. Where Drover takes machines over, it has the kinds of the systems that they
// are of.
func begin(ctx context.Context, args ...string) (*rig.Rig, error) {
	if here.mcm == nil {
		return here.start(ctx, args...)
	}
	r, err := here.start(ctx, append(args, takeover.PatientWithNodes)...)
	if err == nil {
		err = takeover.InstallKinds(ctx, r.Client)
	}
	return r, err
}

// needs skips a test of which -cloud is no part.
func needs(t *testing.T, has bool) {
	t.Helper()
	if !has {
		skipped.Add(1)
		t.Skipf("it is not for -cloud %s", *where)
	}
	ran.Add(1)
}

// stage is a cluster whose machines come from the stand-in for the cloud.
type stage struct {
	*rig.Stage
	standIn standIn
}

// start starts a stage with this name.
func start(t *testing.T, name string) *stage {
	t.Helper()
	ran.Add(1)
	s := house.Stage(t, name)
	return &stage{s, here.standIn(s)}
}

// startOn is start for a test of one cloud.
func startOn(t *testing.T, cloud, name string) *stage {
	t.Helper()
	needs(t, *where == cloud)
	return start(t, name)
}

// bare returns a stage and its objects, which the test may change and must create.
func bare(t *testing.T, name string) (*stage, []client.Object) {
	t.Helper()
	s, objects := house.Bare(t, name)
	return &stage{s, here.standIn(s)}, objects
}

// unobjected tests that the stand-in had no objection to what it was sent, by the cloud's own
// description of its API.
func unobjected(t testing.TB, cloud standIn) {
	t.Helper()
	if judge, ok := cloud.(interface{ Objections() []string }); ok && len(judge.Objections()) > 0 {
		t.Errorf("the cloud's description of its API: %v", judge.Objections())
	}
}
