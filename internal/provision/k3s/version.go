// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/drover-dev/drover/internal/provision/progress"
)

// CheckVersion returns an error if the servers cannot be changed to the version in the spec. The minor version in the
// spec must not be older than the minor version of any working server. It must be at most one minor version newer than
// the version of each server.
func CheckVersion(in Input) error {
	want, err := version.ParseGeneric(in.Spec.Version)
	if err != nil {
		return fmt.Errorf("spec.version: %w", err)
	}
	for _, host := range in.Hosts {
		if !host.Taken || host.Gone || host.Held == nil || host.Held.Roles == "worker" || in.isOld(&host) || in.replaces(&host) {
			continue
		}
		has, err := version.ParseGeneric(host.Held.Version)
		if err != nil {
			continue // not comparable
		}
		switch {
		case has.Major() == want.Major() && want.Minor() > has.Minor()+1:
			return fmt.Errorf("spec.version %s is more than one minor version above the %s of server %s: set the next minor version first", in.Spec.Version, host.Held.Version, host.Name)
		case host.State != progress.Failed && has.Major() == want.Major() && want.Minor() < has.Minor():
			return fmt.Errorf("spec.version %s is a minor version below the %s of server %s: Kubernetes cannot be downgraded", in.Spec.Version, host.Held.Version, host.Name)
		}
	}
	return nil
}

// replaces reports whether a stopped server replaces its data, or joins a cluster whose data was replaced. In both
// cases, the server's previous version no longer matters.
func (in *Input) replaces(host *Host) bool {
	r := in.Stored.Restore
	return host.Held.Stopped != "" && (r != nil && r.Replacing() || host.Held.Epoch != in.Stored.Epoch)
}
