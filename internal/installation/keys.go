// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"fmt"
	"strconv"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// keysTimeout is how long a rotation of encryption keys may take, in seconds. The distributions encrypt five Secrets in a second.
const keysTimeout = 4 * 3600

// rotateKeys rotates the keys that encrypt Secrets, and waits until all Secrets are encrypted by the new one: until then a server that is started again reads none.
const rotateKeys = `"$0" secrets-encrypt rotate-keys --data-dir "$DATA" || exit
until "$0" secrets-encrypt status --data-dir "$DATA" | grep reencrypt_finished; do sleep 5; done`

// CheckKeys refuses a rotation of keys that a cluster does not have.
func CheckKeys(spec Spec) error {
	if spec.EncryptionKeyRotation == 0 || spec.Distribution == provisionv1.DistributionRKE2 || spec.Config["secrets-encryption"] == true || spec.ServerConfig["secrets-encryption"] == true {
		return nil
	}
	return fmt.Errorf("spec.encryptionKeyRotation: k3s encrypts Secrets only with serverConfig.secrets-encryption: true, which a cluster has from its beginning")
}

// decideKeys decides which server rotates the encryption keys now, if any does, and remembers the outcome. It begins while nothing else changes; one that has begun
// goes on.
func (d *decision) decideKeys(removes int) {
	s, want := &d.out.Stored, d.Spec.EncryptionKeyRotation
	if want <= max(s.Keys, s.KeysFailed) {
		return
	}
	settled := removes == 0
	for _, m := range d.ordered() {
		switch {
		case !m.server():
		case m.Held != nil && m.Held.Keys == want && m.up():
			s.Keys, s.KeysProblem = want, ""
			d.Stored.Keys = want // the servers are started again now
			return
		case m.Held != nil && m.Held.Keys == want && m.Connected && m.Progress == Failed:
			s.KeysFailed, s.KeysProblem = want, protocol.Cut(fmt.Sprintf("host %s: %s", m.Name, m.Detail), 512)
			return
		case m.Held != nil && m.Held.Keys == want:
			d.rotates = m.Name
			return
		default:
			settled = settled && m.up() && d.current(m)
		}
	}
	if operator := d.operator(); settled && operator != nil {
		d.rotates = operator.Name
	}
}

// current reports whether a host was started with all that it is to have.
func (d *decision) current(m *member) bool {
	plan, err := d.plan(m, m.Held.Join, nil)
	return err == nil && plan.Start == m.Held.Start
}

// keys adds the rotation to the plan of the server that is to do it.
func (in *Input) keys(p *Plan, f flavor, host *member, env map[string]string) {
	if in.rotates != host.Name {
		return
	}
	p.Keys = in.Spec.EncryptionKeyRotation
	p.Instructions = append(p.Instructions, protocol.HostInstruction{
		ID: "keys-" + strconv.FormatInt(p.Keys, 10), Command: []string{"/bin/sh", "-c", rotateKeys, f.name}, Env: env, TimeoutSeconds: keysTimeout})
}
