// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

var (
	errConflict = apierrors.NewConflict(schema.GroupResource{Resource: "droveraccounts"}, "a", errors.New("the object has been modified"))
	errFailure  = errors.New("the API server is away")
)

// TestRetried: a controller reconciles again after a Conflict, and neither logs nor counts an
// error. It does both for any other error, and for one that is joined with a Conflict.
func TestRetried(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		failed bool
	}{
		"conflict":             {err: errConflict},
		"wrapped":              {err: fmt.Errorf("patching status: %w", errConflict)},
		"joined":               {err: errors.Join(fmt.Errorf("patching status: %w", errConflict), errConflict)},
		"failure":              {err: errFailure, failed: true},
		"failure and conflict": {err: errors.Join(errConflict, errFailure), failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines, calls := run(t, name, c.err)
				if calls != 2 {
					t.Errorf("reconciled %d times, want 2", calls)
				}
				if logged := strings.Contains(lines, "Reconciler error"); logged != c.failed {
					t.Errorf("logged an error: %v, want %v\n%s", logged, c.failed, lines)
				}
				if counted := failures(t, name); counted != c.failed {
					t.Errorf("counted an error: %v, want %v", counted, c.failed)
				}
			})
		})
	}
}

// run has a controller reconcile one object, the first time with an error. It returns the lines
// logged and how often the object was reconciled.
func run(t *testing.T, name string, first error) (string, int) {
	t.Helper()
	var mu sync.Mutex
	var lines strings.Builder
	calls := 0
	logger := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines.WriteString(args + "\n")
	}, funcr.Options{})
	it, err := controller.NewUnmanaged(name, controller.Options{
		LogConstructor: func(*reconcile.Request) logr.Logger { return logger },
		Reconciler: Retried[reconcile.Request](reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			calls++
			if calls == 1 {
				return reconcile.Result{}, first
			}
			return reconcile.Result{}, nil
		})),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = it.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(reconcile.Request{})
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = it.Start(ctx) })
	time.Sleep(time.Minute) // on the bubble's clock
	stop()
	running.Wait()
	return lines.String(), calls
}

// failures reports whether controller-runtime has counted an error of a controller.
func failures(t *testing.T, name string) bool {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_errors_total" {
			continue
		}
		for _, metric := range family.Metric {
			if metric.Label[0].GetValue() == name {
				return metric.Counter.GetValue() > 0
			}
		}
	}
	t.Fatalf("no count of errors of %q", name)
	return false
}
