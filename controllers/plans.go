// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/progress"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/secrets"
)

// returnTime is how long after its start a manager waits for agents to come back before a wave goes on without them, as the Cluster controller
// does before it calls them lost.
const returnTime = 25 * time.Second

// setUpPlans adds the controller of plans, the listener to the members' progress and the poller of channels.
func setUpPlans(mgr ctrl.Manager, o Options, deliveries *delivery.Store) error {
	listener := progress.New(progress.Options{Members: o.Members, Log: mgr.GetLogger().WithName("progress")})
	o.Members.OnChange(listener.Changed)
	reach := release.Public
	if o.Config.Channels.Private {
		reach = release.Private
	}
	poller := release.NewPoller(release.New(reach).Latest, time.Now)
	usable, err := labels.NewRequirement(v1.LabelPlansUse, selection.Equals, []string{"true"})
	if err != nil {
		return err
	}
	labelledOnes, err := labelledSecrets(mgr, *usable)
	if err != nil {
		return err
	}
	plans := &plan.Reconciler{
		Client: mgr.GetClient(), Secrets: &secrets.Reader{Reader: labelledOnes, Live: mgr.GetAPIReader()}, Recorder: mgr.GetEventRecorder("drover-plan"), Deliveries: deliveries, Progress: listener, Channels: poller, Now: time.Now,
		Settled: func() bool { return time.Since(o.Started) > returnTime && (o.Synced == nil || o.Synced()) },
	}
	for _, register := range []func() error{
		func() error { return mgr.Add(labelledOnes) },
		func() error { return mgr.Add(listener) },
		func() error { return mgr.Add(poller) },
		func() error { return plans.Register(mgr, labelledOnes) },
	} {
		if err := register(); err != nil {
			return err
		}
	}
	return nil
}
