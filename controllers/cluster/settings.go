// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

// announce sends the hub's settings to a connected agent that reports different settings. The agent confirms the
// settings in its next report. If the agent does not confirm them, they are sent again after a delay.
func (r *Reconciler) announce(in *input) {
	report := in.member.Report
	if report == nil || versionSkew(report) != "" || report.SettingsDigest == in.settings.Digest() {
		return
	}
	in.announced = r.Members.StartSettings(in.name, in.settings)
}
