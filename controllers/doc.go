// SPDX-License-Identifier: Apache-2.0

// Package controllers holds the reconcilers of Drover's infrastructure and control plane kinds, and
// their webhooks. The reconcilers are thin and level-triggered. Each one reads objects, asks a
// fleet.Account, takes one step and writes the observed status once. No reconciler waits, polls or
// sleeps: the work queue handles timing. The package must not import bootstrap, cmd or a driver.
// It knows clouds only through cloud.Cloud rows.
package controllers
