import fc from 'fast-check'
import { expect, it } from 'vitest'
import { Chain, ChainLink } from '../../src/base/chain.js'

class Member extends ChainLink<Member> {
  readonly name: number

  constructor(name: number) {
    super()
    this.name = name
  }
}

it('keeps the order of arrival, whoever leaves', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(20), { maxLength: 300 }), (steps) => {
      const chain = new Chain<Member>()
      let model: Member[] = []
      for (const [name, step] of steps.entries()) {
        const leaves = model[step]
        if (leaves === undefined || step > 12) {
          const member = new Member(name)
          chain.add(member)
          model.push(member)
        } else {
          expect(chain.delete(leaves)).toBe(true)
          expect(chain.delete(leaves)).toBe(false)
          model = model.filter((member) => member !== leaves)
        }
        expect(chain.all()).toEqual(model)
        expect([chain.size, chain.first]).toEqual([model.length, model[0]])
      }
    }),
  )
})

it('takes one again that has left, at its end', () => {
  const chain = new Chain<Member>()
  const [a, b] = [new Member(1), new Member(2)]
  for (const member of [a, b]) chain.add(member)
  chain.delete(a)
  chain.add(a)
  expect(chain.all().map(({ name }) => name)).toEqual([2, 1])
})
