// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/drover-io/drover/cloud"
)

func TestRetryDelays(t *testing.T) {
	key := types.NamespacedName{Name: "m"}
	for _, test := range []struct {
		name   string
		err    error
		nth    int // index of the failure in a row, from 0
		least  time.Duration
		byTime bool
	}{
		{"first throttle", cloud.Errorf(cloud.Throttled, "x"), 0, time.Second, true},
		{"fourth throttle", cloud.Errorf(cloud.Throttled, "x"), 3, 8 * time.Second, true},
		{"hundredth throttle is capped", cloud.Errorf(cloud.Throttled, "x"), 99, time.Minute, true},
		{"the cloud's own wish wins", &cloud.Error{Code: cloud.Throttled, RetryAfter: 5 * time.Minute}, 0, 5 * time.Minute, true},
		{"quota", cloud.Errorf(cloud.QuotaExceeded, "x"), 0, 30 * time.Second, true},
		{"quota is capped", cloud.Errorf(cloud.QuotaExceeded, "x"), 50, 10 * time.Minute, true},
		{"a wrapped error keeps its code", fmt.Errorf("creating: %w", cloud.Errorf(cloud.Unauthorized, "x")), 0, 30 * time.Second, true},
		{"an ended context is Unavailable", context.DeadlineExceeded, 0, time.Second, true},
		{"a foreign error is Unknown", errors.New("x"), 0, time.Second, true},
		{"an invalid spec waits for a change", cloud.Errorf(cloud.InvalidSpec, "x"), 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &retries{}
			for range test.nth {
				r.after(key, test.err)
			}
			got, byTime := r.after(key, test.err)
			if byTime != test.byTime {
				t.Fatalf("retried by time: %v, want %v", byTime, test.byTime)
			}
			if got < test.least || got > test.least+test.least/4+1 {
				t.Errorf("waits %s, want %s to %s", got, test.least, test.least+test.least/4)
			}
		})
	}
}

func TestRetryForgetsAfterSuccess(t *testing.T) {
	r, key := &retries{}, types.NamespacedName{Name: "m"}
	for range 10 {
		r.after(key, cloud.Errorf(cloud.Unavailable, "x"))
	}
	r.forget(key)
	if got, _ := r.after(key, cloud.Errorf(cloud.Unavailable, "x")); got > 2*time.Second {
		t.Errorf("after a success the first delay is %s, want about a second", got)
	}
}

func TestQueuedTurnIsKeptExactly(t *testing.T) {
	r, key := &retries{}, types.NamespacedName{Name: "m"}
	for range 3 {
		if got, ok := r.after(key, &cloud.Queued{After: 7 * time.Second}); !ok || got != 7*time.Second {
			t.Fatalf("waits %s, want exactly 7s: a turn is not a failure", got)
		}
	}
}

func TestCutKeepsMessagesValid(t *testing.T) {
	for _, in := range []string{"", "short", strings.Repeat("x", 5000), strings.Repeat("é", 5000), "bad \xff\xfe bytes", strings.Repeat("\xf0\x9f", 4000)} {
		got := truncate(in)
		if len(got) > maxMessage || !utf8.ValidString(got) {
			t.Errorf("cut(%d bytes) has %d bytes, valid %v", len(in), len(got), utf8.ValidString(got))
		}
		if len(in) <= maxMessage && utf8.ValidString(in) && got != in {
			t.Errorf("cut changed %q, which fits", in)
		}
	}
}

func TestTriggerKeepsWhatComesBeforeTheReconciler(t *testing.T) {
	trigger := &EventQueue{}
	early := reconcile.Request{NamespacedName: types.NamespacedName{Name: "early"}}
	trigger.Add(early)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := trigger.Source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	late := reconcile.Request{NamespacedName: types.NamespacedName{Name: "late"}}
	trigger.Add(late, late)
	for _, want := range []reconcile.Request{early, late} {
		got, _ := queue.Get()
		if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if queue.Len() != 0 {
		t.Errorf("%d requests are left, want none: equal ones are one", queue.Len())
	}
}
