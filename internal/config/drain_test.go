// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/config"
)

// The kubelet kills all processes that remain after the grace period, and controller-runtime abandons its runnables
// after its own timeout.
func TestGracePeriodFitsTheDrain(t *testing.T) {
	manager := filepath.Join("..", "..", "config", "manager")
	c, err := config.Load(filepath.Join(manager, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(manager, "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(raw, &deployment); err != nil {
		t.Fatal(err)
	}
	grace := time.Duration(*deployment.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	if grace < c.Drain.Timeout() {
		t.Errorf("the grace period is %s and a stop takes up to %s, want a longer grace period", grace, c.Drain.Timeout())
	}
	if most := c.Drain.Delay.Duration + max(c.Drain.Sessions.Duration, config.MoveTime); c.Drain.Timeout() <= most {
		t.Errorf("no time is left after %s, want some for the rest of the stop", most)
	}
}
