// SPDX-License-Identifier: Apache-2.0

// Package controllers holds the reconcilers of Drover's infrastructure and control plane kinds, and
// their webhooks. They are thin and level-triggered: each reads objects, asks a cloud.Account,
// takes one step and writes what it saw, once. None waits, polls or sleeps: time belongs to the
// queue. It may not import bootstrap, main or a driver; it learns of clouds through cloud.Cloud
// rows alone.
package controllers
