// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

// claim makes the set the owner of an object. If another set owns the object, claim returns the ID of that set and
// false.
func (l *leadership) claim(r ref, s *localSet) (owner string, ok bool) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	owner, taken := l.state.owners[r]
	if taken && owner != s.id {
		if l.state.waiting[r] == nil {
			l.state.waiting[r] = map[string]bool{}
		}
		l.state.waiting[r][s.id] = true
		return owner, false
	}
	l.state.owners[r] = s.id
	s.claimed[r] = true
	return s.id, true
}

// unclaim ends the set's ownership of objects that are not in the map wanted, and returns those objects.
func (l *leadership) unclaim(s *localSet, wanted map[ref]bool) (given []ref) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	for r := range s.claimed {
		if wanted[r] {
			continue
		}
		given = append(given, r)
		delete(s.claimed, r)
		delete(l.state.owners, r)
		delete(l.state.applied, r)
		delete(s.budgets, r)
		for id := range l.state.waiting[r] {
			l.queue.Add(id)
		}
		delete(l.state.waiting, r)
	}
	return given
}
