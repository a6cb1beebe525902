// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

// upgradeTime is how long an agent may take to reconnect with a new Deployment. If an upgrade fails, the agent restores
// the previous Deployment after two minutes per replica.
const upgradeTime = 15 * time.Minute

// hubRevision returns a digest of the hub's part of an agent's Deployment: the defaults in the hub's configuration, and
// the Deployment that this manager version creates for a Cluster without its own settings.
func (r *Reconciler) hubRevision() (string, error) {
	nothing := &input{cluster: &v1.Cluster{}, settings: r.Settings()}
	d, err := (&registration.Manifests{}).Deployment(registration.ManifestInput{Image: r.image(nothing), Agent: registration.WithDefaults(v1.Agent{}, r.Agent), Trust: v1.TrustSystem,
		Settings: protocol.Settings{Servers: []string{"https://hub.invalid"}}})
	return d.Digest, err
}

// image returns the image that the agent should run.
func (r *Reconciler) image(in *input) string {
	return protocol.WithRegistry(in.settings.Registry, cmp.Or(in.cluster.Spec.Agent.Image, r.Agent.Image))
}

// observeAgent records the progress of the agent's upgrade in the status, and reports the agent's state to Upgrades. It
// must be called before deploy.
func (r *Reconciler) observeAgent(in *input) error {
	if r.Upgrades == nil {
		return nil
	}
	if in.cluster.Status.Agent == nil && in.member.Report == nil {
		r.Upgrades.observe(in.name, agentState{out: true}) // no agent has ever reported
		return nil
	}
	state, d, agent := agentState{}, in.deploymentReport(), in.agent()
	switch {
	case d == nil:
		state.away = "its agent has not reported its Deployment"
	case d.Unmanaged || in.profileDiffers():
		state.out = true
	default:
		if err := r.look(in, d); err != nil {
			return err
		}
		state.waits = d.Digest != in.deployed.want.Digest && !in.deployed.userAlone()
		state.out = d.Failed == in.deployed.want.Digest && !r.Upgrades.begun(agent)
	}
	if r.Upgrades.begun(agent) {
		if up := agent.Upgrade; in.now.Sub(up.Since.Time) >= upgradeTime {
			fail(up, in.now)
		}
		state.upgrade = agent.Upgrade.DeepCopy()
		state.waits = state.waits && agent.Upgrade.Complete == nil
	}
	r.Upgrades.observe(in.name, state)
	return nil
}

// look builds the Deployments that may be sent to the agent. It also writes the agent's report about its Deployment to
// the status.
func (r *Reconciler) look(in *input, d *protocol.Deployment) (err error) {
	agent := in.cluster.Status.Agent
	if in.deployed.want, err = r.manifests.Deployment(r.manifestInput(in)); err != nil {
		return err
	}
	if in.deployed.own, err = r.own(in); err != nil {
		return err
	}
	want, own := in.deployed.want.Digest, in.deployed.own
	switch done := d.RolledOut; {
	case done && d.Digest == want:
		agent.Image, agent.ObservedGeneration = r.image(in), in.cluster.Generation
	case done && own != nil && d.Digest == own.Digest:
		agent.ObservedGeneration = in.cluster.Generation
	}
	agent.WantedImage = ""
	if image := r.image(in); image != agent.Image && (agent.Image != "" || d.Digest != want) {
		agent.WantedImage = image
	}
	switch {
	case !r.Upgrades.begun(agent) || agent.Upgrade.Complete != nil:
	case d.Digest == want && d.RolledOut:
		now := stamp(in.now)
		agent.Upgrade.Complete, agent.Upgrade.Failed = &now, nil
	case d.Failed == want:
		fail(agent.Upgrade, in.now)
	}
	return nil
}

// own returns the Deployment for a spec that a user has changed since the agent's Deployment was created. It returns
// nil if the spec has not changed or if the agent's Deployment is unknown. A user's change does not wait for the
// agent's turn, so this Deployment uses the agent's current image unless the spec sets one.
func (r *Reconciler) own(in *input) (*registration.Deployment, error) {
	agent := in.cluster.Status.Agent
	switch {
	case agent.ObservedGeneration == 0 || agent.ObservedGeneration == in.cluster.Generation:
		return nil, nil
	case in.cluster.Spec.Agent.Image != "":
		return &in.deployed.want, nil
	case agent.Image == "":
		return nil, nil
	}
	with := r.manifestInput(in)
	with.Image = agent.Image
	d, err := r.Upgrades.kept.Deployment(with)
	return &d, err
}

// agent returns the status field for the agent, and creates it if necessary. The result shares no memory with the
// Cluster or with its previous status.
func (in *input) agent() *v1.AgentStatus {
	if in.cluster.Status.Agent == nil {
		in.cluster.Status.Agent = &v1.AgentStatus{}
	}
	return in.cluster.Status.Agent
}

// deploymentReport returns a connected agent's report about its Deployment, or nil if the agent has not sent one.
func (in *input) deploymentReport() *protocol.Deployment {
	if !in.member.Connected() || in.member.Report == nil {
		return nil
	}
	return in.member.Report.Deployment
}

func fail(up *v1.AgentUpgrade, now time.Time) {
	if at := stamp(now); up.Complete == nil && up.Failed == nil {
		up.Failed = &at
	}
}

// stamp converts a time to the format used in a status.
func stamp(now time.Time) metav1.Time { return metav1.NewTime(now.Truncate(time.Second)) }

// upgradeDue returns the time at which the agent's upgrade counts as failed, or the zero time if the agent is not being
// upgraded.
func (in *input) upgradeDue() time.Time {
	if a := in.cluster.Status.Agent; a != nil && a.Upgrade != nil && a.Upgrade.Complete == nil && a.Upgrade.Failed == nil {
		return a.Upgrade.Since.Add(upgradeTime)
	}
	return time.Time{}
}

// mayUpgrade reports whether the agent may receive the current version of the hub's part of its Deployment. If it is
// the agent's turn, mayUpgrade records this in the status. An incompatible agent does not have to wait, because it
// serves no requests that an upgrade could interrupt.
func (r *Reconciler) mayUpgrade(in *input) bool {
	agent := in.cluster.Status.Agent
	if r.Upgrades == nil || versionSkew(in.member.Report) != "" || r.Upgrades.begun(agent) {
		return true
	}
	turn := r.Upgrades.turn(in.name)
	if turn != nil {
		agent.Upgrade = turn
	}
	return turn != nil
}

// waiting returns a message for an agent that is waiting for its turn.
func waiting(in *input) string {
	what := "a Deployment of this version of the hub"
	if wanted := in.cluster.Status.Agent.WantedImage; wanted != "" {
		what = "image " + wanted
	}
	return fmt.Sprintf("The agent waits for its turn to get %s: the hub upgrades agents in stages, as agent.rollout of its configuration says. "+
		"See all of them with: kubectl drover agents -A", what)
}
