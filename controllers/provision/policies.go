// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"

	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/drover-dev/drover/internal/policies"
	"github.com/drover-dev/drover/internal/provision/config"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,verbs=list

// watchPolicies makes every replica watch the admission policies that restrict the provisioner's account.
func watchPolicies(mgr ctrl.Manager, cfg config.Config, clients kubernetes.Interface) error {
	log := mgr.GetLogger().WithName("policies")
	watch, err := policies.New(limits(cfg), clients.AdmissionregistrationV1(), log)
	if err != nil {
		return err
	}
	if err := metrics.Registry.Register(watch); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return mgr.Add(watch)
}

// limits returns the manifests of the policies that a configuration requires.
func limits(cfg config.Config) policies.Manifests {
	files, folder := []string{"provision/policy.yaml"}, "config/provision"
	if cfg.ClusterAPI.Enabled {
		files, folder = append(files, "clusterapi/policy.yaml"), "config/clusterapi"
	}
	if cfg.ClusterAPI.Import {
		files, folder = append(files, "clusterapi/import/policy.yaml"), folder+" and config/clusterapi/import"
	}
	return policies.Manifests{Files: files, Policies: folder, Rights: folder}
}
