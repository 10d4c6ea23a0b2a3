import { filter, firstValueFrom, type Observable } from 'rxjs'

/** Collects what `states` tells, each as `name` or `name epoch`. */
export function follow(states: Observable<{ state: string; epoch?: number }>): string[] {
  const seen: string[] = []
  states.subscribe(({ state, epoch }) => seen.push(epoch === undefined ? state : `${state} ${epoch}`))
  return seen
}

/** The first state of that name, from the current one on. */
export function until<State extends { state: string }, Name extends State['state']>(
  states: Observable<State>,
  name: Name,
): Promise<Extract<State, { state: Name }>> {
  return firstValueFrom(
    states.pipe(filter((state): state is Extract<State, { state: Name }> => state.state === name)),
  )
}
